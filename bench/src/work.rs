//! Extra work per operation: a chain of arithmetic in which each step depends on the one before, so
//! that no processor can execute steps in parallel. It reads no clock.

use tidemill_env::Env;

/// Work of a certain length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    steps: u64,
}

impl Work {
    /// Measures and returns work of about `ns` nanoseconds; none for 0.
    pub(crate) fn calibrated(env: &Env, ns: u64) -> Work {
        const STEPS: u64 = 1_000_000;
        if ns == 0 {
            return Work { steps: 0 };
        }
        let best = (0..9)
            .map(|i| {
                let begun = env.clock.monotonic_ns();
                std::hint::black_box(chain(STEPS, std::hint::black_box(i)));
                env.clock.monotonic_ns() - begun
            })
            .min()
            .expect("nine runs");
        let steps = (ns * STEPS).div_ceil(best.max(1)).max(1);
        Work { steps }
    }

    /// Whether there is any work.
    #[inline(always)]
    pub(crate) fn is_some(self) -> bool {
        self.steps > 0
    }

    /// Works on a value, after the work that returned `after`. The operations of a transaction are
    /// one chain, so that the processor can't execute them in parallel.
    #[inline(always)]
    pub(crate) fn run(self, on: i64, after: u64) -> u64 {
        if self.steps == 0 {
            return 0;
        }
        std::hint::black_box(chain(self.steps, on as u64 ^ after))
    }
}

/// Out of line, so that the code around is compiled as if there were no work.
#[inline(never)]
fn chain(steps: u64, from: u64) -> u64 {
    (0..steps).fold(from, |x, step| {
        x.wrapping_mul(0x2545_F491_4F6C_DD1D).rotate_left(23).wrapping_add(step)
    })
}
