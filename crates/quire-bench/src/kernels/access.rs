//! Loads and stores of which somebody may be told.

use quire_core::units::VirtAddr;

/// Who is told of accesses.
pub trait Recorder {
    /// The program used what lies at an address.
    fn access(&mut self, at: VirtAddr);
}

/// Nobody: the compiler leaves no trace of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Recorder for Silent {
    #[inline(always)]
    fn access(&mut self, _: VirtAddr) {}
}

/// Reads an element.
#[inline(always)]
pub fn load<T: Copy, R: Recorder>(of: &[T], at: usize, recorder: &mut R) -> T {
    let place = &of[at];
    recorder.access(address(place));
    *place
}

/// Writes an element.
#[inline(always)]
pub fn store<T, R: Recorder>(of: &mut [T], at: usize, value: T, recorder: &mut R) {
    let place = &mut of[at];
    recorder.access(address(place));
    *place = value;
}

#[inline(always)]
fn address<T>(place: &T) -> VirtAddr {
    VirtAddr(std::ptr::from_ref(place).addr() as u64)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Keeps every address.
    #[derive(Debug, Default)]
    pub struct All(pub Vec<VirtAddr>);

    impl Recorder for All {
        fn access(&mut self, at: VirtAddr) {
            self.0.push(at);
        }
    }

    #[test]
    fn addresses_are_those_of_the_elements() {
        let mut values = [1.0, 2.0, 3.0];
        let start = VirtAddr(values.as_ptr().addr() as u64);
        let mut all = All::default();
        assert_eq!(load(&values, 2, &mut all), 3.0);
        store(&mut values, 1, 9.0, &mut all);
        assert_eq!(values, [1.0, 9.0, 3.0]);
        let offsets: Vec<u64> = all.0.iter().map(|at| (*at - start).0).collect();
        assert_eq!(offsets, [16, 8]);
    }
}
