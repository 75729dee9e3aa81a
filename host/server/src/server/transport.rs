//! The transport of a service, with its shares of the memory that all services have.

use std::time::{SystemTime, UNIX_EPOCH};

use rivulet_transport::Time;
use rivulet_transport::server::{MinisocketCache, Policy, ReplayMemory, Server as Transport};

/// Uses that the replay memory stores for a horizon, 16 bytes each, for all services: 65,000
/// requests a second at 4 s for each of up to 16 services. More services share it, down to this
/// minimum each. Above it, repeated requests pass.
const REPLAY_USES: usize = 1 << 22;
const REPLAY_USES_OF_ONE: (usize, usize) = (1 << 12, 1 << 18);
/// Continuations in the minisocket caches of all services, and the limits for one: a round trip of
/// 20 ms at 400,000 packets a second, in a megabyte.
const MINISOCKETS: usize = 1 << 17;
const MINISOCKETS_OF_ONE: (usize, usize) = (1 << 9, 1 << 13);

/// The clock of replicas without a ToR's stamps: real time, which NTP synchronizes.
pub(crate) fn common_clock() -> Time {
    Time(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64)
}

/// Makes the transport of a service. It has a replay memory even behind a trusted ToR, for requests
/// that the ToR could not judge.
pub(super) fn transport(policy: Policy, replay: Option<ReplayMemory>, services: usize) -> Transport {
    let share = |all: usize, (least, most): (usize, usize)| {
        (all / services.max(1).next_power_of_two()).clamp(least, most)
    };
    // It covers a whole horizon one horizon from now, not from the first request.
    let fresh = || {
        ReplayMemory::new(share(REPLAY_USES, REPLAY_USES_OF_ONE), policy.horizon, secret())
            .since(common_clock())
    };
    Transport {
        policy,
        replay: Some(replay.unwrap_or_else(fresh)),
        cache: Some(MinisocketCache::new(share(MINISOCKETS, MINISOCKETS_OF_ONE))),
    }
}

/// A secret that prevents others from choosing numbers that collide in the replay memory.
fn secret() -> u64 {
    // Without randomness from the kernel it can be guessed, and the defence lets some repeats pass.
    getrandom::u64().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_behind_a_trusted_tor_has_a_replay_memory() {
        let transport = transport(Policy { trust_tor: true, ..Policy::default() }, None, 1);
        assert!(transport.replay.is_some() && transport.cache.is_some());
    }
}
