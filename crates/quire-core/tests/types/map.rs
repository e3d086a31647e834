//! The tag map, against a tag for each byte.

use proptest::collection::vec;
use proptest::prelude::*;
use quire_core::dsm::types::{Segment, TagError, TagMap, TypeTag};
use quire_core::units::{Bytes, ObjectOffset};

const SIZE: u64 = 96;

fn tag() -> impl Strategy<Value = TypeTag> {
    prop::sample::select(TypeTag::ALL.to_vec())
}

/// What each byte is, and where elements begin and end: a tag is never cut inside of an
/// element, whose bounds are the multiples of its size.
fn naive(bytes: &[TypeTag], start: u64, end: u64, tag: TypeTag) -> bool {
    if start >= end || end > SIZE {
        return false;
    }
    let range = start as usize..end as usize;
    let whole = [start, end]
        .iter()
        .all(|at| at.is_multiple_of(tag.element()));
    let other = bytes[range]
        .iter()
        .any(|byte| ![tag, TypeTag::Untyped].contains(byte));
    let cut = |at: u64| {
        let (before, after) = (
            bytes.get(at.wrapping_sub(1) as usize),
            bytes.get(at as usize),
        );
        before == after && after.is_some_and(|tag| !at.is_multiple_of(tag.element()))
    };
    match tag {
        TypeTag::Untyped => !cut(start) && !cut(end),
        _ => whole && !other,
    }
}

fn range(start: u64, end: u64) -> std::ops::Range<ObjectOffset> {
    ObjectOffset(start)..ObjectOffset(end)
}

proptest! {
    #[test]
    fn the_map_is_a_tag_for_each_byte(
        steps in vec((0..=SIZE / 2, 0..=SIZE / 2, 1..=2u64, tag()), 0..40),
        look in (0..SIZE, 0..SIZE),
    ) {
        let mut map = TagMap::new(Bytes(SIZE));
        let mut bytes = [TypeTag::Untyped; SIZE as usize];
        for (start, len, grain, tag) in steps {
            let (start, end) = (start * grain, (start + len) * grain);
            let done = map.tag(range(start, end), tag);
            prop_assert_eq!(done.is_ok(), naive(&bytes, start, end, tag), "{:?}", done);
            if done.is_ok() {
                bytes[start as usize..end as usize].fill(tag);
            }
            for (at, tag) in bytes.iter().enumerate() {
                prop_assert_eq!(map.tag_at(ObjectOffset(at as u64)), *tag);
            }
            let segments: Vec<Segment> = map.segments().collect();
            for pair in segments.windows(2) {
                let apart = pair[0].end < pair[1].start;
                let differ = pair[0].end == pair[1].start && pair[0].tag != pair[1].tag;
                prop_assert!(apart || differ, "{:?}", segments);
            }
        }
        let (start, end) = (look.0.min(look.1), look.0.max(look.1));
        let mut at = start;
        for span in map.spans(range(start, end)) {
            prop_assert_eq!(span.start.0, at);
            prop_assert!(!span.is_empty());
            let part = &bytes[span.start.0 as usize..span.end.0 as usize];
            prop_assert!(part.iter().all(|tag| *tag == span.tag));
            at = span.end.0;
        }
        prop_assert_eq!(at, end);
        prop_assert_eq!(TagMap::parse(&map.to_string(), Bytes(SIZE)), Ok(map.clone()));
        let json = serde_json::to_string(&map).unwrap();
        prop_assert_eq!(serde_json::from_str::<TagMap>(&json).unwrap(), map);
    }
}

#[test]
fn a_segment_changes_its_type_in_two_steps() {
    let mut map = TagMap::new(Bytes(4096));
    map.tag(range(0, 1024), TypeTag::Int32).unwrap();
    let again = map.tag(range(512, 2048), TypeTag::Float64);
    let expected = TagError::Tagged {
        start: 0,
        tag: TypeTag::Int32,
    };
    assert_eq!(again, Err(expected));
    map.tag(range(512, 1024), TypeTag::Untyped).unwrap();
    map.tag(range(512, 2048), TypeTag::Float64).unwrap();
    assert_eq!(map.to_string(), "int32:0-512,float64:512-2048");
}

#[test]
fn tags_are_read_as_a_user_writes_them() {
    let parse = |text| TagMap::parse(text, Bytes(1 << 20)).map(|map| map.to_string());
    assert_eq!(parse("").as_deref(), Ok(""));
    assert_eq!(parse("float64").as_deref(), Ok("float64:0-1048576"));
    assert_eq!(
        parse("int16:4K-8K,int8:0-16").as_deref(),
        Ok("int8:0-16,int16:4096-8192")
    );
    let refused = |text| parse(text).unwrap_err().to_string();
    assert!(refused("int24:0-4K").contains("unknown type `int24`"));
    assert!(refused("int32:0").contains("write TYPE:START-END"));
    assert!(refused("int32:0-4X").contains("`4X` is not a size"));
    assert!(refused("int32:2-4K").contains("in the middle of an element"));
    assert!(refused("int32:0-2M").contains("not inside of the object"));
    assert!(refused("int32:0-8,int64:0-8").contains("is tagged int32"));
    let overlapping = r#"{"size":64,"segments":[{"start":0,"end":8,"tag":"int16"},{"start":4,"end":8,"tag":"int32"}]}"#;
    assert!(serde_json::from_str::<TagMap>(overlapping).is_err());
}
