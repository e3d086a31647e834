//! An array that is read in order.

use crate::kernels::access::{Recorder, load};

/// Writes each element once.
pub fn fill(array: &mut [f64]) {
    for (n, element) in array.iter_mut().enumerate() {
        *element = n as f64;
    }
}

/// The sum of all elements.
pub fn sum<R: Recorder>(array: &[f64], recorder: &mut R) -> f64 {
    (0..array.len()).map(|n| load(array, n, recorder)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::access::tests::All;

    #[test]
    fn each_element_is_read_once_and_in_order() {
        let mut array = [0.0; 100];
        fill(&mut array);
        let mut all = All::default();
        assert_eq!(sum(&array, &mut all), 4950.0);
        assert_eq!(all.0.len(), 100);
        assert!(all.0.windows(2).all(|pair| (pair[1] - pair[0]).0 == 8));
    }
}
