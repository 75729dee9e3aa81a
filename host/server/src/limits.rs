//! Limits on a service. The controller's check reads the same file, so both accept the same
//! configurations (`controller/rivulet_controller/limits.toml`).

use std::net::IpAddr;
use std::sync::LazyLock;

const FILE: &str = include_str!("../../../controller/rivulet_controller/limits.toml");

/// Maximum number of services of one replica.
pub const MAX_SERVICES: usize = number("services") as usize;
/// Maximum number of addresses of one service.
pub const MAX_ADDRESSES: usize = number("addresses") as usize;
/// Maximum number of ToRs of other racks that send to one service here.
pub const MAX_TUNNELS: usize = number("tunnels") as usize;
/// Maximum number of servers for one service's records.
pub const MAX_STORES: usize = number("stores") as usize;
/// Maximum number of certificates of one service.
pub const MAX_CERTIFICATES: usize = number("certificates") as usize;
/// Maximum length of a path in bytes.
pub const MAX_PATH_BYTES: usize = number("path_bytes") as usize;
/// Maximum number of heartbeats a second of one replica, over all its pools.
pub const MAX_HEARTBEATS_PER_SECOND: u64 = number("heartbeats_per_second");
/// Minimum and maximum time between two heartbeats, microseconds.
pub const HEARTBEAT_US: (u64, u64) = (number("heartbeat_min_us"), number("heartbeat_max_us"));
/// Maximum liveness bound, microseconds.
pub const MAX_LIVENESS_US: u64 = number("liveness_max_us");
/// Minimum and maximum horizon (age of a fresh request), microseconds.
pub const HORIZON_US: (u64, u64) = (number("horizon_min_us"), number("horizon_max_us"));

/// Prefixes of addresses that no host has, or that routers do not forward to a host.
static NO_HOST: LazyLock<Vec<(IpAddr, u32)>> = LazyLock::new(|| {
    let list = FILE.split_once("no_host").map_or("", |(_, list)| list);
    let quoted = list.split('"').skip(1).step_by(2);
    quoted
        .filter_map(|text| text.split_once('/'))
        .filter_map(|(a, n)| Some((a.parse().ok()?, n.parse().ok()?)))
        .collect()
});

/// Whether a host can have this address and be reached there.
#[must_use]
pub fn is_host(address: IpAddr) -> bool {
    let within = |(prefix, length): &(IpAddr, u32)| match (address, prefix) {
        (IpAddr::V4(a), IpAddr::V4(p)) => (a.to_bits() ^ p.to_bits()).leading_zeros() >= *length,
        (IpAddr::V6(a), IpAddr::V6(p)) => (a.to_bits() ^ p.to_bits()).leading_zeros() >= *length,
        _ => false,
    };
    !NO_HOST.iter().any(within)
}

/// The number in the line `key = number`. Evaluated at compile time, where a missing key is an
/// error.
const fn number(key: &str) -> u64 {
    let (text, key) = (FILE.as_bytes(), key.as_bytes());
    let mut at = 0;
    while at < text.len() {
        let mut same = 0;
        while same < key.len() && text[at + same] == key[same] {
            same += 1;
        }
        at += same;
        if same == key.len() && text[at] == b' ' && text[at + 1] == b'=' {
            let mut value = 0;
            at += 3;
            while at < text.len() && (text[at].is_ascii_digit() || text[at] == b'_') {
                if text[at] != b'_' {
                    value = value * 10 + (text[at] - b'0') as u64;
                }
                at += 1;
            }
            return value;
        }
        while at < text.len() && text[at] != b'\n' {
            at += 1;
        }
        at += 1;
    }
    panic!("limits.toml has no such number")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_file_is_parsed_as_toml() {
        let file: toml::Table = toml::from_str(FILE).unwrap();
        let numbers = [
            ("services", MAX_SERVICES as u64),
            ("addresses", MAX_ADDRESSES as u64),
            ("tunnels", MAX_TUNNELS as u64),
            ("stores", MAX_STORES as u64),
            ("certificates", MAX_CERTIFICATES as u64),
            ("path_bytes", MAX_PATH_BYTES as u64),
            ("heartbeats_per_second", MAX_HEARTBEATS_PER_SECOND),
            ("heartbeat_min_us", HEARTBEAT_US.0),
            ("heartbeat_max_us", HEARTBEAT_US.1),
            ("liveness_max_us", MAX_LIVENESS_US),
            ("horizon_min_us", HORIZON_US.0),
            ("horizon_max_us", HORIZON_US.1),
        ];
        for (name, value) in numbers {
            assert_eq!(file[name].as_integer(), i64::try_from(value).ok(), "{name}");
        }
        assert_eq!(file.len(), numbers.len() + 1);
        assert_eq!(file["no_host"].as_array().unwrap().len(), NO_HOST.len());
    }

    #[test]
    fn hosts_have_addresses_outside_the_list() {
        for good in ["10.9.0.1", "192.0.2.1", "223.255.255.255", "fd00::1", "2001:db8::1", "::2:0:1"] {
            assert!(is_host(good.parse().unwrap()), "{good}");
        }
        for bad in [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "169.254.1.1",
            "224.0.0.5",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "febf::1",
            "ff02::1",
            "::ffff:10.0.0.1",
        ] {
            assert!(!is_host(bad.parse().unwrap()), "{bad}");
        }
    }
}
