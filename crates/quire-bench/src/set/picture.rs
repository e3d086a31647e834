//! A picture to compress: slopes, edges and some noise, in the PPM format.

use anyhow::{Result, ensure};

use crate::kernels::Numbers;

const WIDTH: usize = 384;
const HEIGHT: usize = 256;
/// Bytes of a point.
const POINT: usize = 3;
/// How far a point may be off in the mean after compression with losses, of 255.
const LOSS: f64 = 6.0;

fn header() -> String {
    format!("P6\n{WIDTH} {HEIGHT}\n255\n")
}

/// The picture, always the same.
pub fn ppm() -> Vec<u8> {
    let mut numbers = Numbers::new(8);
    let mut bytes = header().into_bytes();
    for at in 0..WIDTH * HEIGHT {
        let (x, y) = (at % WIDTH, at / WIDTH);
        let edge = if (x / 48 + y / 32) % 3 == 0 { 60 } else { 0 };
        let noise = numbers.below(8);
        let colours = [x * 160 / WIDTH, y * 160 / HEIGHT, (x + y) * 120 / WIDTH];
        bytes.extend(colours.map(|colour| (colour + edge + noise).min(255) as u8));
    }
    bytes
}

/// Whether a picture looks like another one, which is [`ppm`]'s.
///
/// # Errors
/// When it has another size, or is too far off.
pub fn alike(found: &[u8], expected: &[u8]) -> Result<()> {
    let head = header();
    let (found, expected) = match (
        found.strip_prefix(head.as_bytes()),
        expected.get(head.len()..),
    ) {
        (Some(found), Some(expected)) => (found, expected),
        _ => anyhow::bail!("it has another size or format"),
    };
    ensure!(
        found.len() == WIDTH * HEIGHT * POINT,
        "it has {} bytes",
        found.len()
    );
    let far = found
        .iter()
        .zip(expected)
        .map(|(a, b)| u64::from(a.abs_diff(*b)));
    let mean = far.sum::<u64>() as f64 / found.len() as f64;
    ensure!(mean < LOSS, "points are off by {mean:.1} of 255");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_losses_are_borne_and_large_ones_are_not() {
        let picture = ppm();
        let changed = |by: u8| -> Vec<u8> {
            let from = header().len();
            let mut other = picture.clone();
            other[from..]
                .iter_mut()
                .for_each(|b| *b = b.saturating_add(by));
            other
        };
        alike(&picture, &picture).unwrap();
        alike(&changed(3), &picture).unwrap();
        assert!(alike(&changed(40), &picture).is_err());
        assert!(alike(&picture[..1000], &picture).is_err());
        assert!(alike(b"P6\n2 2\n255\n", &picture).is_err());
    }
}
