//! TCP/CM in virtual time: the bars of docs/congestion-manager.md at a size for tests. Few seeds
//! leave more to chance: 0.8 to 1.2 replaces the full run's 0.9 to 1.1.

use rivulet_sim::experiments::sharing;
use rivulet_sim::managed::Style;
use rivulet_sim::{MILLISECOND, SECOND, stats};

const STYLES: [Style; 2] = [Style::Grants, Style::Pull];

#[test]
fn a_group_has_the_share_of_one_connection_and_shares_it_evenly() {
    for style in STYLES {
        for count in [1, 4, 16] {
            let all: Vec<_> =
                (0..6).map(|seed| sharing::group(seed, Some(style), count, 60 * SECOND)).collect();
            let mean = stats::mean(&all.iter().map(|s| s.of_reno).collect::<Vec<_>>());
            assert!((0.8..1.2).contains(&mean), "{style:?}, {count}: {mean} of Reno's, {all:?}");
            assert!(all.iter().all(|s| s.jain > 0.99), "{style:?}, {count}: {all:?}");
        }
    }
    // The share of the same connections without a manager.
    let alone = sharing::group(0, None, 4, 60 * SECOND).of_reno;
    assert!(alone > 3.0, "four connections of Reno have {alone} times the share of one");
}

#[test]
fn one_connection_is_as_fast_as_renos_at_any_loss() {
    for style in STYLES {
        for loss in [0.0, 0.005, 0.01, 0.02, 0.05] {
            let ratio = |seed| {
                let of = |style| sharing::goodput(seed, style, loss, 60 * SECOND);
                of(Some(style)) / of(None)
            };
            let mean = stats::mean(&(0..6).map(ratio).collect::<Vec<_>>());
            assert!((0.9..1.1).contains(&mean), "{style:?} at a loss of {loss}: {mean} of Reno's");
        }
    }
}

/// The paper's Figure 7, with its initial window of one packet, and with today's.
#[test]
fn later_fetches_find_the_window_of_the_first() {
    let fetch = |style, initial| {
        let took = sharing::fetches(1, style, initial, 9, 128 * 1024, 75 * MILLISECOND, SECOND);
        took.into_iter().map(|t| t.expect("a fetch that ends") / MILLISECOND).collect::<Vec<_>>()
    };
    let reno = fetch(None, 10);
    assert!(reno.iter().all(|t| *t == reno[0]), "{reno:?}");
    for (style, initial) in [(Style::Grants, 1), (Style::Grants, 10), (Style::Pull, 10)] {
        let managed = fetch(Some(style), initial);
        // An initial window of one packet costs three more round trips than ten.
        assert_eq!(
            managed[0] > reno[0] + 200,
            initial == 1,
            "{style:?}, {initial}: {managed:?}, Reno {reno:?}"
        );
        for later in &managed[2..] {
            assert!(later * 10 <= reno[0] * 6, "{style:?}, {initial}: {managed:?}, Reno {reno:?}");
        }
    }
}
