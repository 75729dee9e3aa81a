//! The generated messages and services, in modules named as their packages, and the descriptors of all of them.
#![allow(missing_docs, clippy::all, clippy::pedantic)]

/// `p4`
pub mod p4 {
    /// `p4.v1`: P4Runtime itself.
    pub mod v1 {
        tonic::include_proto!("p4.v1");
    }
    /// `p4.config`
    pub mod config {
        /// `p4.config.v1`: P4Info.
        pub mod v1 {
            tonic::include_proto!("p4.config.v1");
        }
    }
}

/// `google`
pub mod google {
    /// `google.rpc`
    pub mod rpc {
        tonic::include_proto!("google.rpc");
    }
}

/// `rivulet`
pub mod rivulet {
    /// `rivulet.switch`
    pub mod switch {
        /// `rivulet.switch.v1`: ports, links and traces.
        pub mod v1 {
            tonic::include_proto!("rivulet.switch.v1");
        }
    }
}

/// A `FileDescriptorSet` of everything above, encoded.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
