//! Translation between machines, against the plain reference.

mod map;
mod reference;

use proptest::collection::vec;
use proptest::prelude::*;
use quire_core::dsm::types::report::PLACES;
use quire_core::dsm::types::{
    Kind, Machine, Place, Report, SpanError, TagMap, Translation, TypeTag,
};
use quire_core::units::{Bytes, ObjectOffset};

use reference::Format;

const FLOATS: [TypeTag; 2] = [TypeTag::Float32, TypeTag::Float64];

fn pairs() -> impl Iterator<Item = Translation> {
    Machine::ALL
        .into_iter()
        .flat_map(|from| Machine::ALL.map(|to| Translation::new(from, to)))
}

/// Whether the two machines hold the type in different formats, not only byte orders.
fn converts(translation: Translation, tag: TypeTag) -> bool {
    let Translation { from, to } = translation;
    match tag {
        TypeTag::Float32 => from.float32() != to.float32(),
        TypeTag::Float64 => from.float64() != to.float64(),
        _ => false,
    }
}

fn translated(translation: Translation, tag: TypeTag, data: &[u8]) -> (Vec<u8>, Report) {
    let mut report = Report::new();
    let mut data = data.to_vec();
    translation
        .in_place(tag, ObjectOffset(0), &mut data, &mut report)
        .unwrap();
    (data, report)
}

/// Translates numbers in memory, and compares them and the report with the reference.
fn check(translation: Translation, tag: TypeTag, data: &[u8]) {
    let (got, report) = translated(translation, tag, data);
    let element = tag.element() as usize;
    let mut expected = Report::new();
    for (index, number) in data.chunks(element).enumerate() {
        let at = index * element;
        let (memory, kind) = reference::translate(tag, translation.from, translation.to, number);
        let got = &got[at..at + element];
        assert_eq!(got, memory, "{translation:?} of {tag} {number:02x?}");
        if let Some(kind) = kind {
            let offset = ObjectOffset(at as u64);
            expected.note(Place { offset, tag, kind });
        }
    }
    assert_eq!(report, expected, "{translation:?} of {tag}");
}

/// Exponents at which a range ends, and some between.
fn telling(exponent: u64, bits: u32) -> bool {
    let ends = [0..16, 880..910, 1140..1160, 2030..2048];
    bits == 8 || exponent % 8 == 3 || ends.iter().any(|end| end.contains(&exponent))
}

/// Fractions at which rounding and carries differ.
fn fractions(bits: u32) -> impl Iterator<Item = u64> {
    let all = (1u64 << bits) - 1;
    let single = (5..bits).step_by(3).map(|bit| 1 << bit);
    (0..=16)
        .chain((0..=8).map(move |less| all - less))
        .chain(single)
}

#[test]
fn telling_exponents_and_fractions() {
    for tag in FLOATS {
        for translation in pairs().filter(|pair| converts(*pair, tag)) {
            let format = Format::of(translation.from, tag);
            let bits = format.fraction_bits() as u32;
            let exponent_bits = tag.element() as u32 * 8 - 1 - bits;
            let exponents = 0..1u64 << exponent_bits;
            for exponent in exponents.filter(|exponent| telling(*exponent, exponent_bits)) {
                let numbers = fractions(bits).flat_map(|fraction| {
                    let magnitude = exponent << bits | fraction;
                    [false, true].map(|negative| format.memory(negative, magnitude))
                });
                check(translation, tag, &numbers.flatten().collect::<Vec<u8>>());
            }
        }
    }
}

#[test]
fn floats_of_4_bytes_all_over() {
    for translation in pairs().filter(|pair| converts(*pair, TypeTag::Float32)) {
        let format = Format::of(translation.from, TypeTag::Float32);
        let numbers = (0..1u64 << 32).step_by(16_411);
        let memory = numbers.flat_map(|bits| format.memory(bits >> 31 == 1, bits & 0x7fff_ffff));
        check(translation, TypeTag::Float32, &memory.collect::<Vec<u8>>());
    }
}

/// Numbers whose exponents are mostly where ranges end, in a form of no machine: the sign,
/// and the exponent and the fraction as one number.
fn number() -> impl Strategy<Value = (bool, u64)> {
    let exponent = prop_oneof![0..2048u64, 880..1160u64, 2040..2048u64, 0..300u64];
    let fraction = prop_oneof![any::<u64>(), (0..32u64), any::<u64>().prop_map(|n| n << 40)];
    (any::<bool>(), exponent, fraction)
        .prop_map(|(negative, exponent, fraction)| (negative, exponent << 52 | fraction >> 12))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn floats_of_8_bytes(numbers in vec(number(), 1..200), low in any::<u64>()) {
        for translation in pairs().filter(|pair| converts(*pair, TypeTag::Float64)) {
            let format = Format::of(translation.from, TypeTag::Float64);
            // A D has the exponent in fewer bits: the same bits mean something else there.
            for shift in [0, 3] {
                let memory = numbers.iter().flat_map(|(negative, magnitude)| {
                    let magnitude = (magnitude << shift | low & 7 >> (3 - shift)) & (u64::MAX >> 1);
                    format.memory(*negative, magnitude)
                });
                check(translation, TypeTag::Float64, &memory.collect::<Vec<u8>>());
            }
        }
    }

    /// A block is translated as a whole, or one by one if one of it is unusual or it is short.
    #[test]
    fn blocks_are_the_same_as_single_numbers(
        numbers in vec((any::<bool>(), 1030..1140u64, any::<u64>()), 64..200),
        odd in proptest::option::of((0..64usize, number())),
    ) {
        for translation in pairs().filter(|pair| converts(*pair, TypeTag::Float64)) {
            let format = Format::of(translation.from, TypeTag::Float64);
            let shift = if translation.from == Machine::VaxD { 55 } else { 52 };
            let ordinary = numbers.iter().map(|(negative, exponent, fraction)| {
                let exponent = exponent - if shift == 55 { 1022 - 128 } else { 0 };
                (*negative, exponent << shift | fraction >> (64 - shift))
            });
            let mut numbers: Vec<(bool, u64)> = ordinary.collect();
            if let Some((at, odd)) = odd {
                numbers[at] = odd;
            }
            let memory = numbers.iter().flat_map(|(sign, magnitude)| format.memory(*sign, *magnitude));
            let memory: Vec<u8> = memory.collect();
            let (whole, report) = translated(translation, TypeTag::Float64, &memory);
            let mut counts = Report::new();
            for (number, got) in memory.chunks(8).zip(whole.chunks(8)) {
                let (alone, more) = translated(translation, TypeTag::Float64, number);
                prop_assert_eq!(&alone, got);
                counts.merge(&more);
            }
            for kind in Kind::ALL {
                prop_assert_eq!(counts.count(kind), report.count(kind));
            }
        }
    }

    /// What is exact one way is exact back.
    #[test]
    fn the_way_back(numbers in vec(number(), 1..100)) {
        for tag in FLOATS {
            for translation in pairs().filter(|pair| converts(*pair, tag)) {
                let format = Format::of(translation.from, tag);
                let back = Translation::new(translation.to, translation.from);
                for (negative, magnitude) in &numbers {
                    let narrow = if tag == TypeTag::Float32 { 32 } else { 0 };
                    let memory = format.memory(*negative, magnitude >> narrow);
                    let (there, report) = translated(translation, tag, &memory);
                    // The fraction of a reserved operand means nothing and is not kept.
                    if report != Report::new() || format.is_reserved(&memory) {
                        continue;
                    }
                    let (again, report) = translated(back, tag, &there);
                    prop_assert_eq!(report, Report::new());
                    prop_assert_eq!(again, memory);
                }
            }
        }
    }

    #[test]
    fn integers_and_equal_formats_change_byte_order_only(data in vec(any::<u8>(), 0..600)) {
        for translation in pairs() {
            for tag in TypeTag::ALL.into_iter().filter(|tag| !converts(translation, *tag)) {
                let data = &data[..data.len() / 8 * 8];
                let (got, report) = translated(translation, tag, data);
                let mut expected = data.to_vec();
                if translation.touches(tag) {
                    let element = tag.element() as usize;
                    expected.chunks_mut(element).for_each(<[u8]>::reverse);
                }
                prop_assert_eq!(got, expected);
                prop_assert_eq!(report, Report::new());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Longer than what is copied at once.
    #[test]
    fn a_copy_is_the_same_as_in_place(numbers in vec(number(), 513..700)) {
        for tag in TypeTag::ALL {
            for translation in pairs() {
                let memory = numbers.iter().flat_map(|(_, magnitude)| magnitude.to_le_bytes());
                let memory: Vec<u8> = memory.collect();
                let (in_place, report) = translated(translation, tag, &memory);
                let mut copied = vec![0xaa; memory.len()];
                let mut other = Report::new();
                translation.copy(tag, ObjectOffset(0), &memory, &mut copied, &mut other).unwrap();
                prop_assert_eq!(in_place, copied);
                prop_assert_eq!(report, other);
            }
        }
    }
}

#[test]
fn all_integers_of_2_bytes() {
    let little: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let big: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_be_bytes).collect();
    let swap = Translation::new(Machine::VaxG, Machine::Big);
    assert_eq!(
        translated(swap, TypeTag::Int16, &little),
        (big, Report::new())
    );
}

#[test]
fn machines_of_one_form_change_nothing() {
    for machine in Machine::ALL {
        for tag in TypeTag::ALL {
            assert!(!Translation::new(machine, machine).touches(tag));
        }
    }
    assert!(!Translation::new(Machine::VaxD, Machine::VaxG).touches(TypeTag::Float32));
    assert!(Translation::new(Machine::VaxD, Machine::VaxG).touches(TypeTag::Float64));
    for translation in pairs() {
        assert!(!translation.touches(TypeTag::Untyped));
        assert!(!translation.touches(TypeTag::Int8));
    }
}

/// Words of 2 bytes in a VAX's memory.
fn vax_words<const N: usize>(words: [u16; N]) -> Vec<u8> {
    words.into_iter().flat_map(u16::to_le_bytes).collect()
}

#[test]
fn well_known_numbers() {
    let float = |number: f32| number.to_le_bytes().to_vec();
    let double = |number: f64| number.to_le_bytes().to_vec();
    let f = |number, words| (TypeTag::Float32, Machine::VaxD, float(number), words);
    let d = |number, words| (TypeTag::Float64, Machine::VaxD, double(number), words);
    let g = |number, words| (TypeTag::Float64, Machine::VaxG, double(number), words);
    let cases = [
        f(1.0, vax_words([0x4080, 0])),
        f(-1.0, vax_words([0xc080, 0])),
        f(0.5, vax_words([0x4000, 0])),
        f(10.0, vax_words([0x4220, 0])),
        f(0.0, vax_words([0, 0])),
        f(f32::MAX / 2.0, vax_words([0x7fff, 0xffff])),
        // Denormals of IEEE: 2^-128 and 2^-1024.
        f(f32::from_bits(1 << 21), vax_words([0x0080, 0])),
        d(1.0, vax_words([0x4080, 0, 0, 0])),
        d(-2.0, vax_words([0xc100, 0, 0, 0])),
        d(10.0, vax_words([0x4220, 0, 0, 0])),
        g(1.0, vax_words([0x4010, 0, 0, 0])),
        g(10.0, vax_words([0x4044, 0, 0, 0])),
        g(f64::MAX / 2.0, vax_words([0x7fff, 0xffff, 0xffff, 0xffff])),
        g(f64::from_bits(1 << 50), vax_words([0x0010, 0, 0, 0])),
    ];
    for (tag, vax, ieee, words) in cases {
        let there = translated(Translation::new(Machine::Little, vax), tag, &ieee);
        assert_eq!(there, (words.clone(), Report::new()));
        let back = translated(Translation::new(vax, Machine::Little), tag, &words);
        assert_eq!(back.0, ieee);
    }
    assert_eq!(
        u32::from_le_bytes(vax_words([0x4080, 0]).try_into().unwrap()),
        0x0000_4080
    );
}

#[test]
fn pi_of_a_vax_is_rounded_to_pi() {
    // A quarter of pi is 0.C90FDAA22168C2|34C in hexadecimal.
    let pi = vax_words([0x4149, 0x0fda, 0xa221, 0x68c2]);
    let to_ieee = Translation::new(Machine::VaxD, Machine::Big);
    let (memory, report) = translated(to_ieee, TypeTag::Float64, &pi);
    assert_eq!(memory, std::f64::consts::PI.to_be_bytes());
    assert_eq!((report.count(Kind::Inexact), report.replaced()), (1, 0));
}

#[test]
fn what_cannot_be_held_is_reported_with_its_place() {
    let numbers = [
        1.0,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        1e39,
        -1e-40,
        -0.0,
        0.0,
    ];
    let mut memory: Vec<u8> = numbers.into_iter().flat_map(f64::to_be_bytes).collect();
    let mut report = Report::new();
    let to_vax = Translation::new(Machine::Big, Machine::VaxD);
    to_vax
        .in_place(
            TypeTag::Float64,
            ObjectOffset(4096),
            &mut memory,
            &mut report,
        )
        .unwrap();
    let largest = |first| vax_words([first, 0xffff, 0xffff, 0xffff]);
    let expected = [
        vax_words([0x4080, 0, 0, 0]),
        vax_words([0x8000, 0, 0, 0]),
        largest(0x7fff),
        largest(0xffff),
        largest(0x7fff),
        vax_words([0; 4]),
        vax_words([0; 4]),
        vax_words([0; 4]),
    ];
    assert_eq!(memory, expected.concat());
    let places: Vec<(u64, Kind)> = report
        .places()
        .map(|place| (place.offset.0 - 4096, place.kind))
        .collect();
    let expected = [
        (8, Kind::NotANumber),
        (16, Kind::Infinity),
        (24, Kind::Infinity),
        (32, Kind::Overflow),
        (40, Kind::Underflow),
    ];
    assert_eq!(places, expected);
    assert_eq!((report.replaced(), report.rounded()), (5, 1));
    assert_eq!(report.count(Kind::NegativeZero), 1);
}

#[test]
fn a_page_of_nans_is_counted_to_the_end() {
    let memory: Vec<u8> = (0..512).flat_map(|_| f64::NAN.to_le_bytes()).collect();
    let to_vax = Translation::new(Machine::Little, Machine::VaxG);
    let (_, report) = translated(to_vax, TypeTag::Float64, &memory);
    assert_eq!(report.count(Kind::NotANumber), 512);
    let places: Vec<u64> = report.places().map(|place| place.offset.0).collect();
    assert_eq!(
        places,
        (0..PLACES as u64 * 8).step_by(8).collect::<Vec<u64>>()
    );
}

#[test]
fn reserved_operands_and_dirty_zeros() {
    let reserved = vax_words([0x8000, 1, 2, 3]);
    let dirty = vax_words([0x0001, 0xffff, 0, 1]);
    let both = [reserved, dirty].concat();
    let to_ieee = Translation::new(Machine::VaxD, Machine::Big);
    let (memory, report) = translated(to_ieee, TypeTag::Float64, &both);
    let quiet = 0x7ff8_0000_0000_0000u64.to_be_bytes();
    assert_eq!(memory, [quiet, [0; 8]].concat());
    assert_eq!(report.count(Kind::Reserved), 1);
    assert_eq!(report.count(Kind::DirtyZero), 1);
    let to_g = Translation::new(Machine::VaxD, Machine::VaxG);
    let (memory, report) = translated(to_g, TypeTag::Float64, &both);
    assert_eq!(memory, vax_words([0x8000, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!((report.replaced(), report.rounded()), (0, 1));
}

#[test]
fn spans_that_cut_elements_are_refused_and_left_alone() {
    let swap = Translation::new(Machine::Little, Machine::Big);
    let before: Vec<u8> = (0..64).collect();
    for (tag, at, len) in [
        (TypeTag::Int64, 0, 12),
        (TypeTag::Int64, 4, 8),
        (TypeTag::Float32, 2, 4),
        (TypeTag::Int16, 0, 1),
    ] {
        let mut data = before[..len].to_vec();
        let mut report = Report::new();
        let offset = ObjectOffset(at);
        let refused = swap.in_place(tag, offset, &mut data, &mut report);
        let len = Bytes(len as u64);
        assert_eq!(refused, Err(SpanError::Straddles { offset, len, tag }));
        assert_eq!(data, before[..data.len()]);
    }
    let mut short = [0; 8];
    let refused = swap.copy(
        TypeTag::Int8,
        ObjectOffset(0),
        &before,
        &mut short,
        &mut Report::new(),
    );
    assert!(matches!(refused, Err(SpanError::Lengths { .. })));
    let tags = TagMap::parse("int16:0-8,int64:8-64", Bytes(64)).unwrap();
    let mut cut = before[..60].to_vec();
    let refused = swap.contents(&tags, ObjectOffset(0), &mut cut, &mut Report::new());
    assert!(refused.is_err());
    assert_eq!(cut, before[..60]);
}

#[test]
fn contents_follow_their_tags() {
    let tags = TagMap::parse("int16:8-16,int32:16-24,float64:32-40", Bytes(48)).unwrap();
    let mut data: Vec<u8> = (0..40).collect();
    data[28..36].copy_from_slice(&f64::INFINITY.to_le_bytes());
    let from = data.clone();
    let mut report = Report::new();
    let to_vax = Translation::new(Machine::Little, Machine::VaxD);
    let (at, swap) = (
        ObjectOffset(4),
        Translation::new(Machine::Little, Machine::Big),
    );
    to_vax
        .contents(&tags, at, &mut data[..36], &mut report)
        .unwrap();
    assert_eq!(data[..28], from[..28]);
    assert_eq!(data[28..36], vax_words([0x7fff, 0xffff, 0xffff, 0xffff]));
    assert_eq!(report.places().next().unwrap().offset, ObjectOffset(32));

    let mut copied = vec![0; 36];
    swap.copy_contents(&tags, at, &from[..36], &mut copied, &mut report)
        .unwrap();
    let mut expected = from[..36].to_vec();
    expected[4..12].chunks_mut(2).for_each(<[u8]>::reverse);
    expected[12..20].chunks_mut(4).for_each(<[u8]>::reverse);
    expected[28..36].reverse();
    assert_eq!(copied, expected);
}

/// The quick way alone, and the careful one alone, which otherwise share the work.
#[test]
fn ordinary_numbers_are_converted_with_care_in_the_same_way() {
    use quire_core::dsm::types::float::{Layout, convert};
    let layouts = |machine: Machine| Layout::of_float64(machine.float64());
    for translation in pairs().filter(|pair| converts(*pair, TypeTag::Float64)) {
        let (from, to) = (layouts(translation.from), layouts(translation.to));
        let (source, target) = (
            Format::of(translation.from, TypeTag::Float64),
            Format::of(translation.to, TypeTag::Float64),
        );
        for exponent in 0..40u64 {
            for fraction in fractions(from.fraction) {
                let exponent = (from.bias as u64 + exponent - 20) << from.fraction;
                let magnitude = exponent | fraction;
                let (got, _) = translated(
                    translation,
                    TypeTag::Float64,
                    &source.memory(true, magnitude),
                );
                let (careful, _) = convert(from, to, magnitude);
                assert_eq!(got, target.memory(true, careful));
            }
        }
    }
}
