//! Kernel features that the programs need. Each is probed where it is first used.
//!
//! Features are probed and not derived from the version, because distributions add features to
//! older kernels and leave others out. The versions are those of mainline, for errors and for the
//! table in docs/hosts.md; a test compares both.

use std::io;
use std::path::Path;

use libbpf_rs::btf::types::{Func, Struct};
use libbpf_rs::libbpf_sys::{
    BPF_TCX_INGRESS, bpf_map_create_opts, bpf_prog_query_opts, bpf_prog_query_opts as query,
};
use libbpf_rs::{Btf, ErrorKind, MapHandle, MapType};

/// The kernel's BTF.
const BTF: &str = "/sys/kernel/btf/vmlinux";
/// Index of the interface `lo` in every network namespace.
const LOOPBACK: i32 = 1;

/// linux/capability.h
const CAP_NET_ADMIN: u32 = 12;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

/// A kernel feature that a program needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// XDP programs on a link, AF_XDP sockets in a map, and maps in a process's memory.
    Xdp,
    /// Chained programs at ingress and egress of an interface, on links.
    Tcx,
    /// The types of the running kernel, which `struct_ops` and programs that read its sockets need.
    Btf,
    /// A congestion control of TCP as a BPF program.
    StructOps,
    /// The same on a link, which can be pinned.
    StructOpsLink,
    /// Programs that a process runs through their descriptors alone, and access to the kernel's
    /// packet structure in a program at a cgroup's egress.
    UserCalls,
    /// The kernel's TCP takes over connections from a handshake that a program made.
    Handshakes,
}

/// All features.
pub const FEATURES: [Feature; 7] = [
    Feature::Xdp,
    Feature::Tcx,
    Feature::Btf,
    Feature::StructOps,
    Feature::StructOpsLink,
    Feature::UserCalls,
    Feature::Handshakes,
];

impl Feature {
    /// Name of the feature in errors and in docs/hosts.md.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Feature::Xdp => "XDP",
            Feature::Tcx => "tcx",
            Feature::Btf => "BTF",
            Feature::StructOps => "struct_ops",
            Feature::StructOpsLink => "struct_ops links",
            Feature::UserCalls => "calls of users",
            Feature::Handshakes => "handshakes",
        }
    }

    /// The first Linux release with the feature.
    #[must_use]
    pub fn since(self) -> &'static str {
        match self {
            Feature::Xdp => "5.9",
            Feature::Tcx => "6.6",
            Feature::Btf => "5.4",
            Feature::StructOps => "5.6",
            Feature::StructOpsLink => "6.4",
            Feature::UserCalls => "6.2",
            Feature::Handshakes => "6.8",
        }
    }

    /// The kernel configuration options that it needs.
    #[must_use]
    pub fn configuration(self) -> &'static str {
        match self {
            Feature::Xdp => "CONFIG_BPF_SYSCALL, CONFIG_XDP_SOCKETS",
            Feature::Tcx => "CONFIG_BPF_SYSCALL, CONFIG_NET_XGRESS",
            Feature::Btf => "CONFIG_DEBUG_INFO_BTF",
            Feature::StructOps | Feature::StructOpsLink => "CONFIG_BPF_JIT, CONFIG_DEBUG_INFO_BTF",
            Feature::UserCalls => "CONFIG_CGROUP_BPF, CONFIG_DEBUG_INFO_BTF",
            Feature::Handshakes => "CONFIG_SYN_COOKIES, CONFIG_DEBUG_INFO_BTF",
        }
    }

    /// Capabilities that a process without root needs. The programs of tcx calculate with pointers,
    /// and those of a congestion control read the kernel's sockets; for both the verifier requires
    /// `CAP_PERFMON`.
    #[must_use]
    pub fn rights(self) -> &'static str {
        match self {
            Feature::Tcx | Feature::StructOpsLink | Feature::UserCalls | Feature::Handshakes => {
                "CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN"
            }
            Feature::Xdp | Feature::Btf | Feature::StructOps => "CAP_BPF and CAP_NET_ADMIN",
        }
    }

    fn probe(self) -> Probe {
        match self {
            Feature::Xdp => socket_map(),
            Feature::Tcx => tcx(),
            Feature::Btf if has_btf() => Probe::Present,
            Feature::Btf => Probe::Absent,
            Feature::StructOps => has_struct("bpf_struct_ops_tcp_congestion_ops"),
            Feature::StructOpsLink => struct_ops_link(),
            Feature::UserCalls => has_call("bpf_cast_to_kern_ctx"),
            Feature::Handshakes => has_call("bpf_sk_assign_tcp_reqsk"),
        }
    }
}

/// Result of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probe {
    Present,
    Absent,
    /// The process lacks the privilege to probe the feature.
    Denied,
}

/// A missing feature, and how to get it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// The running kernel lacks the feature.
    #[error(
        "{n} is missing in this kernel ({release}): Linux {s} or newer with {c}",
        n = feature.name(), s = feature.since(), c = feature.configuration()
    )]
    Kernel {
        /// The feature.
        feature: Feature,
        /// Release of the running kernel.
        release: String,
    },
    /// This process lacks the privilege to use the feature.
    #[error("{n} needs root, or {r}", n = feature.name(), r = feature.rights())]
    Right {
        /// The feature.
        feature: Feature,
    },
}

/// Checks that a feature is there.
///
/// # Errors
/// The feature, if it is missing.
pub fn require(feature: Feature) -> Result<(), Missing> {
    judge(feature, feature.probe())
}

fn judge(feature: Feature, probe: Probe) -> Result<(), Missing> {
    match probe {
        Probe::Present => Ok(()),
        Probe::Denied => Err(Missing::Right { feature }),
        Probe::Absent => {
            let release = rustix::system::uname().release().to_string_lossy().into_owned();
            Err(Missing::Kernel { feature, release })
        }
    }
}

/// For tests: returns true, with a line on standard error, if a test that needs this feature must
/// be skipped.
///
/// # Panics
/// On a kernel with BTF, where all features are expected, unless only a privilege is missing.
#[must_use]
pub fn skipped(feature: Feature) -> bool {
    let Err(missing) = require(feature) else { return false };
    assert!(
        !has_btf() || matches!(missing, Missing::Right { .. }),
        "a kernel with BTF and without what a test needs: {missing}"
    );
    eprintln!("SKIPPED: {missing}");
    true
}

/// Whether the kernel has BTF.
#[must_use]
pub fn has_btf() -> bool {
    Path::new(BTF).exists()
}

/// A map of AF_XDP sockets came long before links (5.9), but needs the same rights.
fn socket_map() -> Probe {
    let options = bpf_map_create_opts { sz: size_of::<bpf_map_create_opts>() as u64, ..Default::default() };
    match MapHandle::create(MapType::Xskmap, Some("probe"), 4, 4, 1, &options) {
        Ok(_) => Probe::Present,
        Err(e) if e.kind() == ErrorKind::PermissionDenied => Probe::Denied,
        Err(_) => Probe::Absent,
    }
}

/// Probes tcx by a query of the programs on the loopback device, which older kernels do not know.
/// The query needs only CAP_NET_ADMIN.
fn tcx() -> Probe {
    if !has(CAP_BPF) || !has(CAP_PERFMON) {
        return Probe::Denied;
    }
    let mut options = query { sz: size_of::<bpf_prog_query_opts>() as u64, ..Default::default() };
    // SAFETY: the structure is whole, names its size, and lives through the call.
    let rc =
        unsafe { libbpf_rs::libbpf_sys::bpf_prog_query_opts(LOOPBACK, BPF_TCX_INGRESS, &raw mut options) };
    match io::Error::from_raw_os_error(-rc).kind() {
        _ if rc == 0 => Probe::Present,
        io::ErrorKind::PermissionDenied => Probe::Denied,
        _ => Probe::Absent,
    }
}

/// Whether this thread has a capability, or CAP_SYS_ADMIN, which the kernel accepts instead for
/// most of BPF.
fn has(capability: u32) -> bool {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // If the capabilities are unknown, the attempt itself will show an error.
    mask.is_none_or(|mask| mask & (1 << capability | 1 << CAP_SYS_ADMIN) != 0)
}

/// Looks in BTF for the structure that the kernel has for each kind of `struct_ops`.
fn has_struct(name: &str) -> Probe {
    let Ok(btf) = Btf::from_vmlinux() else { return Probe::Absent };
    match btf.type_by_name::<Struct<'_>>(name) {
        Some(_) => Probe::Present,
        None => Probe::Absent,
    }
}

/// Probes links of `struct_ops`, which are newer than `struct_ops`. A kernel with both accepts
/// links of TCP's.
fn struct_ops_link() -> Probe {
    let both = ["bpf_struct_ops_tcp_congestion_ops", "bpf_struct_ops_link"].map(has_struct);
    if both.contains(&Probe::Absent) {
        return Probe::Absent;
    }
    let rights = [CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN];
    if rights.into_iter().all(has) { Probe::Present } else { Probe::Denied }
}

/// Looks in BTF for the newest kernel function that the programs call.
fn has_call(name: &str) -> Probe {
    let Ok(btf) = Btf::from_vmlinux() else { return Probe::Absent };
    if btf.type_by_name::<Func<'_>>(name).is_none() {
        return Probe::Absent;
    }
    let rights = [CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN];
    if rights.into_iter().all(has) { Probe::Present } else { Probe::Denied }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On the known kernels, one with BTF has all features.
    #[test]
    fn missing_kernel_feature_is_named() {
        for feature in FEATURES {
            if !skipped(feature) {
                assert_eq!(feature.probe(), Probe::Present);
            }
        }
    }

    #[test]
    fn missing_feature_error_names_remedy() {
        for feature in FEATURES {
            let text = judge(feature, Probe::Absent).unwrap_err().to_string();
            let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
            for part in [feature.name(), feature.since(), feature.configuration(), release.trim()] {
                assert!(text.contains(part), "{text}");
            }
            let text = judge(feature, Probe::Denied).unwrap_err().to_string();
            assert!(text.contains(feature.name()) && text.contains(feature.rights()), "{text}");
        }
    }

    /// The table in docs/hosts.md has the same versions.
    #[test]
    fn documented_kernel_versions_match() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/hosts.md");
        let page = std::fs::read_to_string(page).unwrap();
        for feature in FEATURES {
            let row = format!(
                "| {} | {} | `{}` |",
                feature.name(),
                feature.since(),
                feature.configuration().replace(", ", "`, `")
            );
            assert!(page.contains(&row), "not in docs/hosts.md: {row}");
        }
    }
}
