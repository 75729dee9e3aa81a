//! Per-client token bucket that limits unacknowledged data (soft state, fixed memory). A client
//! that acknowledges what it receives never runs out.

use crate::codec::{CookieKeys, Flow};
use crate::large::clock::Time;

/// Number of buckets; addresses that hash to one share it.
const CELLS: usize = 1 << 12;
/// Size of a bucket: bytes that may be sent without acknowledgements, for windows after a change of
/// replica, for requests, and for repairs.
pub(crate) const BURST: u32 = 8 << 20;
/// Bytes by which a bucket refills each millisecond, up to [`BURST`].
pub(crate) const RATE: u32 = 2 << 10;
/// Bytes earned for each acknowledged byte: slow start sends twice the acknowledged bytes, and
/// losses are sent again.
pub(crate) const EARNED: u32 = 2;

#[derive(Clone, Copy, Debug)]
struct Cell {
    /// Bytes left in the bucket.
    left: u32,
    /// Time of the last refill, milliseconds.
    at: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Allowance {
    cells: Box<[Cell]>,
    /// Number of refusals because a bucket was empty.
    refused: u64,
}

/// The bucket of a client's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Account(u16);

impl Allowance {
    pub(crate) fn new() -> Allowance {
        Allowance { cells: vec![Cell { left: BURST, at: 0 }; CELLS].into(), refused: 0 }
    }

    pub(crate) fn octets(&self) -> usize {
        size_of_val(&*self.cells)
    }

    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    /// The bucket of a client's address (of an IPv6 address, its upper 64 bits), hashed under the
    /// cookie's key so that a client cannot know with which addresses it shares the bucket.
    pub(crate) fn account(flow: &Flow, keys: &CookieKeys) -> Account {
        Account((flow.address_hash(keys) as usize % CELLS) as u16)
    }

    fn cell(&mut self, account: Account, now: Time) -> &mut Cell {
        let cell = &mut self.cells[usize::from(account.0) % CELLS];
        let now = (now / 1000) as u32;
        let more = now.wrapping_sub(cell.at).saturating_mul(RATE);
        *cell = Cell { left: cell.left.saturating_add(more).min(BURST), at: now };
        cell
    }

    /// Adds the credit for newly acknowledged bytes.
    pub(crate) fn earn(&mut self, account: Account, acked: u32, now: Time) {
        let cell = self.cell(account, now);
        cell.left = cell.left.saturating_add(acked.saturating_mul(EARNED)).min(BURST);
    }

    /// Whether the bucket has this many bytes; counts a refusal if not.
    pub(crate) fn has(&mut self, account: Account, octets: u32, now: Time) -> bool {
        let has = self.cell(account, now).left >= octets;
        self.refused += u64::from(!has);
        has
    }

    pub(crate) fn spend(&mut self, account: Account, octets: u32) {
        let cell = &mut self.cells[usize::from(account.0) % CELLS];
        cell.left = cell.left.saturating_sub(octets);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::CookieKey;
    use core::net::{Ipv4Addr, Ipv6Addr};

    #[test]
    fn allowance_refills_and_earns_twice_the_acknowledged() {
        let (mut allowance, account) = (Allowance::new(), Account(7));
        allowance.spend(account, BURST);
        assert!(!allowance.has(account, 1, 0) && allowance.has(Account(8), BURST, 0));
        assert!(allowance.has(account, RATE, 1000) && !allowance.has(account, RATE + 1, 1999));
        allowance.earn(account, 1000, 1000);
        assert!(allowance.has(account, RATE + 2000, 1000) && !allowance.has(account, RATE + 2001, 1000));
        allowance.earn(account, u32::MAX, 1000);
        assert!(!allowance.has(account, BURST + 1, u64::from(u32::MAX) * 1000));
        assert_eq!((allowance.refused(), allowance.octets()), (4, CELLS * 8));
    }

    #[test]
    fn each_address_has_one_account_for_all_ports() {
        let keys = CookieKeys { current: CookieKey::new([1; 8]), others: [None; 2] };
        let other = CookieKeys { current: CookieKey::new([2; 8]), others: [None; 2] };
        let v4 =
            |n: u32, port: u16| Flow::new((Ipv4Addr::from(n), port).into(), "10.9.0.1:80".parse().unwrap());
        let v6 = |n: u128| Flow::new((Ipv6Addr::from(n), 9).into(), "[fd00::1]:80".parse().unwrap());
        let of = |flow: Flow| Allowance::account(&flow, &keys);
        assert_eq!(of(v4(77, 1)), of(v4(77, 2)));
        assert_eq!(of(v6(0xfd00 << 112 | 1)), of(v6(0xfd00 << 112 | 2)));
        assert_ne!(of(v6(0xfd00 << 112)), of(v6(0xfd01 << 112)));
        let same = (0..4096).filter(|n| of(v4(*n, 1)) == of(v4(0, 1))).count();
        assert!((1..8).contains(&same), "{same}");
        let alike = (0..4096).filter(|n| of(v4(*n, 1)) == Allowance::account(&v4(*n, 1), &other)).count();
        assert!(alike < 8, "{alike}");
    }
}
