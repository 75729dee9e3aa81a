//! Errors of parsing and of building packets.

macro_rules! wire_errors {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $message:literal;)*) => {
        /// A malformed packet: the broken rule and the byte position.
        ///
        /// The position counts from the start of the slice given to the parser: the frame for
        /// Ethernet, IP and TCP, the TCP payload for requests and responses, the first byte of the
        /// message for heartbeats. With several faults the first one in the packet is reported.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
        pub enum WireError {
            $(#[doc = $message] #[error($message)] $(#[$doc])* $variant(usize),)*
        }

        impl WireError {
            /// Every error's name, in the order of the enum.
            pub const NAMES: &'static [&'static str] = &[$($name),*];

            /// The error's name in the test vectors and in other languages.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant(_) => $name,)* }
            }

            /// Byte offset of the faulty field.
            pub fn position(self) -> usize {
                match self { $(Self::$variant(at) => at,)* }
            }
        }
    };
}

wire_errors! {
    EthTruncated = "eth_truncated", "byte {0}: the Ethernet header ends early";
    EthType = "eth_type", "byte {0}: the EtherType is neither IPv4 nor IPv6";
    EthTagTwice = "eth_tag_twice", "byte {0}: more than one 802.1Q tag";
    Ipv4Truncated = "ipv4_truncated", "byte {0}: the IPv4 header ends early";
    Ipv4Version = "ipv4_version", "byte {0}: the version is not 4";
    Ipv4Options = "ipv4_options", "byte {0}: the IPv4 header is not 20 bytes long";
    Ipv4Length = "ipv4_length", "byte {0}: the total length is beyond the packet or less than the header";
    Ipv4Fragment = "ipv4_fragment", "byte {0}: the packet is a fragment";
    Ipv4Protocol = "ipv4_protocol", "byte {0}: the protocol is not TCP";
    Ipv4Checksum = "ipv4_checksum", "byte {0}: the IPv4 header checksum is wrong";
    Ipv6Truncated = "ipv6_truncated", "byte {0}: the IPv6 header ends early";
    Ipv6Version = "ipv6_version", "byte {0}: the version is not 6";
    Ipv6Length = "ipv6_length", "byte {0}: the payload length is beyond the packet";
    Ipv6NextHeader = "ipv6_next_header", "byte {0}: the next header is not TCP";
    TcpTruncated = "tcp_truncated", "byte {0}: the TCP header ends early";
    TcpDataOffset = "tcp_data_offset", "byte {0}: the TCP data offset is not that of a segment of this kind";
    TcpFlags = "tcp_flags", "byte {0}: the TCP flags do not go with the class";
    TcpChecksum = "tcp_checksum", "byte {0}: the TCP checksum is wrong";
    OptionMissing = "option_missing", "byte {0}: the first TCP option is not Rivulet's, this is plain TCP";
    OptionNotFirst = "option_not_first", "byte {0}: the Rivulet option is not the first";
    OptionLength = "option_length", "byte {0}: the length of the option is not 8";
    OptionVersion = "option_version", "byte {0}: the version of the option is not 1";
    OptionFlags = "option_flags", "byte {0}: an unknown flag in the option";
    ClassUnknown = "class_unknown", "byte {0}: an unknown class";
    ClassDirection = "class_direction", "byte {0}: a response where a request is due or a request for a response";
    SynOptions = "syn_options", "byte {0}: the option block of a SYN is not as laid down";
    NumberLow = "number_low", "byte {0}: the number is not the one in the option";
    TorTruncated = "tor_truncated", "byte {0}: the ToR block ends early";
    TorFlags = "tor_flags", "byte {0}: an unknown flag in the ToR block";
    RangeCount = "range_count", "byte {0}: more than 16 proof entries, or a SYN with any";
    Attempt = "attempt", "byte {0}: an attempt above 3, or any in a SYN or a NORMAL";
    RangeKindsUnused = "range_kinds_unused", "byte {0}: a kind for an entry that is not there";
    RangeKindsUnknown = "range_kinds_unknown", "byte {0}: a kind of entry that does not exist";
    HeadTruncated = "head_truncated", "byte {0}: the sealed head ends early";
    EntryTruncated = "entry_truncated", "byte {0}: the proof entries end early";
    EntryEmpty = "entry_empty", "byte {0}: a range that ends before it begins";
    EntryOrder = "entry_order", "byte {0}: a range that does not lie behind the one before it";
    EntryRangeLate = "entry_range_late", "byte {0}: a range behind a mark";
    EntryMark = "entry_mark", "byte {0}: a mark of more than one number, or with a sum";
    TailTruncated = "tail_truncated", "byte {0}: the sealed tail, its MAC or the request's fields end early";
    ContinuationFlags = "continuation_flags", "byte {0}: an unknown flag in a continuation";
    ContinuationGain = "continuation_gain", "byte {0}: the gain of a continuation is 9 to 15";
    Covers = "covers", "byte {0}: a request that covers neither 1 nor 2 numbers";
    WantCount = "want_count", "byte {0}: more than 16 wants";
    UcontCount = "ucont_count", "byte {0}: more than 16 user continuations";
    BodyFlags = "body_flags", "byte {0}: an unknown body flag";
    WantTruncated = "want_truncated", "byte {0}: the wants end early";
    WantEmpty = "want_empty", "byte {0}: a want of no bytes";
    WantBeyond = "want_beyond", "byte {0}: a want that ends beyond 2^64 bytes";
    WantUcont = "want_ucont", "byte {0}: a want that names a user continuation that is not there";
    WantFlags = "want_flags", "byte {0}: an unknown flag in a want";
    WantReserved = "want_reserved", "byte {0}: the reserved field of a want is not 0";
    TokenTruncated = "token_truncated", "byte {0}: the token ends early";
    TokenEmpty = "token_empty", "byte {0}: a token of no bytes";
    FormerTruncated = "former_truncated", "byte {0}: the former address ends early";
    UcontTruncated = "ucont_truncated", "byte {0}: a user continuation ends early";
    UcontEmpty = "ucont_empty", "byte {0}: a user continuation of no bytes";
    InputTruncated = "input_truncated", "byte {0}: the input header or its data end early";
    InputFlags = "input_flags", "byte {0}: an unknown flag in the input header";
    InputUcont = "input_ucont", "byte {0}: an input that names a user continuation that is not there";
    InputBeyond = "input_beyond", "byte {0}: input that ends beyond 2^64 bytes";
    TrailingBytes = "trailing_bytes", "byte {0}: bytes behind the end of the message";
    ResponseTruncated = "response_truncated", "byte {0}: the response's fields end early";
    ContentFlags = "content_flags", "byte {0}: an unknown content bit, FULL and DELTA together, or content that the class does not carry";
    DeltaTruncated = "delta_truncated", "byte {0}: the delta-encoded continuation ends early";
    DeltaBitmap = "delta_bitmap", "byte {0}: an unknown bit in the bitmap, or one field in two forms";
    GroupCount = "group_count", "byte {0}: a group of no continuations or of more than 16";
    GroupTruncated = "group_truncated", "byte {0}: the group ends early";
    SkipBeyond = "skip_beyond", "byte {0}: a skipped region that is empty or ends beyond 2^64 bytes";
    HeartbeatTruncated = "heartbeat_truncated", "byte {0}: the heartbeat ends early";
    HeartbeatVersion = "heartbeat_version", "byte {0}: the version of the heartbeat is not 2";
    HeartbeatFlags = "heartbeat_flags", "byte {0}: a flag that a heartbeat or an answer does not have";
    HeartbeatReplica = "heartbeat_replica", "byte {0}: a replica index of 64 or more";
}

/// Why a packet cannot be built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum BuildError {
    /// The buffer is too small.
    #[error("the packet takes {need} bytes, the buffer has {have}")]
    BufferTooSmall {
        /// Bytes needed.
        need: usize,
        /// Bytes available.
        have: usize,
    },
    /// More of something than its count field, or the format, allows.
    #[error("{have} {what}, at most {most} are allowed")]
    TooMany {
        /// The kind of item.
        what: &'static str,
        /// Number of items given.
        have: usize,
        /// Largest number in the format.
        most: usize,
    },
    /// A field is missing or not allowed for this class or kind.
    #[error("{what}")]
    Inconsistent {
        /// The rule that is broken.
        what: &'static str,
    },
}
