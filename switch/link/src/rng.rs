//! SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): small, fast, seedable; not for secrets.

/// A stream of pseudo-random numbers.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The stream of a seed; any seed works.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// 64 uniform bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// True with probability `p`. Draws nothing if `p` is 0, so that a disabled feature does not
    /// change the other draws.
    pub fn chance(&mut self, p: f64) -> bool {
        // A double represents 53 bits exactly.
        p > 0.0 && ((self.bits() >> 11) as f64) < p * (1u64 << 53) as f64
    }

    /// Uniform in `0..=max`.
    pub fn up_to(&mut self, max: u64) -> u64 {
        ((u128::from(self.bits()) * (u128::from(max) + 1)) >> 64) as u64
    }
}
