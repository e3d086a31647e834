//! What the programs work on. Everything is drawn from a generator with a fixed
//! seed, so it is the same on every machine and in every run.

use std::fmt::Write;

use quire_stats::random::SplitMix64;
use serde_json::{Map, Value, json};

use crate::service::programs::c_source;

const ADJECTIVES: [&str; 5] = ["old", "small", "red", "happy", "strange"];
const NOUNS: [&str; 7] = ["dog", "man", "house", "river", "teacher", "child", "engine"];
const VERBS: [&str; 5] = ["saw", "found", "liked", "followed", "carried"];
const PREPOSITIONS: [&str; 5] = ["in", "near", "with", "behind", "under"];
const DETERMINERS: [&str; 4] = ["the", "a", "every", "this"];

fn random() -> SplitMix64 {
    SplitMix64::new(0x0046_6967_7572_6533)
}

fn one_of<'a>(random: &mut SplitMix64, words: &[&'a str]) -> &'a str {
    words[random.below(words.len())]
}

/// Commands that play `moves` moves of each side.
pub fn go(moves: usize) -> String {
    let play = "genmove black\ngenmove white\n".repeat(moves);
    format!("boardsize 19\nclear_board\n{play}quit\n")
}

/// A C file of `functions` functions.
pub fn c(functions: usize) -> String {
    c_source(functions)
}

/// A network of `nodes` nodes with sixteen random arcs from each, a chain on
/// which all can flow, and as many sources as sinks, in the format of DIMACS.
pub fn network(nodes: usize) -> String {
    const DEGREE: usize = 16;
    let ends = nodes / 100;
    let mut random = random();
    let mut text = format!("p min {nodes} {}\n", nodes - 1 + nodes * DEGREE);
    for n in 1..=ends {
        let _ = write!(text, "n {n} 100\nn {} -100\n", nodes + 1 - n);
    }
    for from in 1..nodes {
        let _ = writeln!(text, "a {from} {} 0 100000 1000", from + 1);
    }
    for from in 1..=nodes {
        for _ in 0..DEGREE {
            let to = 1 + (from + random.below(nodes - 1)) % nodes;
            let (room, cost) = (1 + random.below(200), 1 + random.below(1000));
            let _ = writeln!(text, "a {from} {to} 0 {room} {cost}");
        }
    }
    text
}

fn noun_phrase(random: &mut SplitMix64) -> String {
    let words = [&DETERMINERS[..], &ADJECTIVES, &NOUNS].map(|w| one_of(random, w));
    words.join(" ")
}

/// Long sentences that can be read in many ways, one in each line.
pub fn sentences(count: usize) -> String {
    let mut random = random();
    let mut text = String::new();
    for _ in 0..count {
        text.push_str("Yesterday ");
        text.push_str(&noun_phrase(&mut random));
        for _ in 0..3 {
            let verb = |r: &mut SplitMix64| one_of(r, &VERBS);
            let place = |r: &mut SplitMix64| one_of(r, &PREPOSITIONS);
            let _ = write!(text, " {} {}", verb(&mut random), noun_phrase(&mut random));
            let _ = write!(text, " {} {}", place(&mut random), noun_phrase(&mut random));
            let _ = write!(text, " and {}", noun_phrase(&mut random));
            let _ = write!(text, " {} {}", verb(&mut random), noun_phrase(&mut random));
            let _ = write!(text, " that");
        }
        let _ = writeln!(
            text,
            " {} {}.",
            one_of(&mut random, &VERBS),
            noun_phrase(&mut random)
        );
    }
    text
}

/// Statements that fill a table and an index, join, delete and change.
pub fn statements(rows: usize) -> String {
    format!(
        "CREATE TABLE part(id INTEGER PRIMARY KEY, kind INTEGER, name TEXT, price REAL);\n\
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})\n\
         INSERT INTO part SELECT i, i * 7919 % 1000, 'part-' || (i * 104729 % 499979), i % 977 * 0.25 FROM n;\n\
         CREATE INDEX by_name ON part(name);\n\
         SELECT count(*), sum(b.price) FROM part a JOIN part b ON b.id = (a.id * 7919) % {rows} + 1;\n\
         DELETE FROM part WHERE kind % 3 = 0;\n\
         UPDATE part SET name = name || '-new' WHERE kind < 300;\n\
         SELECT count(*), sum(price) FROM part WHERE name > 'part-3';\n"
    )
}

/// At least `bytes` bytes of words, frequent ones and rare ones.
pub fn text(bytes: usize) -> String {
    let mut random = random();
    let word = |random: &mut SplitMix64| -> String {
        let letters = 2 + random.below(7);
        (0..letters)
            .map(|_| char::from(b'a' + random.below(26) as u8))
            .collect()
    };
    let words: Vec<String> = (0..20_000).map(|_| word(&mut random)).collect();
    let mut text = String::with_capacity(bytes + 16);
    while text.len() < bytes {
        // The least of three numbers makes the first words frequent.
        let places = [(); 3].map(|()| random.below(words.len()));
        let place = places.into_iter().min().unwrap_or(0);
        text.push_str(&words[place]);
        text.push(if random.below(25) == 0 { '\n' } else { ' ' });
    }
    text
}

/// A script that counts in a hash, sorts its keys and changes a long string.
pub fn script(rounds: usize) -> String {
    format!(
        "use strict;\n\
         my ($seed, %count) = (12345);\n\
         sub draw {{ $seed = ($seed * 1103515245 + 12345) & 0x7fffffff; return $seed >> 8 }}\n\
         for my $i (1 .. {rounds}) {{\n\
         \tmy $key = 'key' . (draw() % 400000);\n\
         \t$count{{$key}}++;\n\
         \tpush @{{$count{{'list' . ($i % 5000)}}}}, $key if $i % 4 == 0;\n\
         }}\n\
         my $total = 0;\n\
         for my $key (sort keys %count) {{\n\
         \t$total += ref $count{{$key}} ? @{{$count{{$key}}}} : $count{{$key}} * length $key;\n\
         }}\n\
         my $text = join ' ', map {{ 'w' . (draw() % 9999) }} 1 .. {rounds} / 2;\n\
         my %seen;\n\
         $seen{{$1}}++ while $text =~ /(\\w+)/g;\n\
         $text =~ s/w(\\d)(\\d)/$2w$1/g;\n\
         print join(' ', $total, scalar keys %seen, unpack '%32C*', $text), \"\\n\";\n"
    )
}

/// The cells of a netlist in the format of Yosys.
struct Netlist {
    cells: Map<String, Value>,
    ports: Map<String, Value>,
    nets: u32,
}

impl Netlist {
    fn net(&mut self) -> u32 {
        self.nets += 1;
        self.nets
    }

    fn cell(&mut self, name: String, kind: &str, pins: &[(&str, &str, &[u32])], table: u32) {
        let directions: Map<_, _> = pins
            .iter()
            .map(|(pin, way, _)| (pin.to_string(), json!(way)))
            .collect();
        let nets: Map<_, _> = pins
            .iter()
            .map(|(pin, _, nets)| (pin.to_string(), json!(nets)))
            .collect();
        let parameters = match kind {
            "LUT4" => json!({ "INIT": format!("{table:016b}") }),
            _ => json!({}),
        };
        let cell = json!({
            "type": kind, "parameters": parameters, "attributes": {},
            "port_directions": directions, "connections": nets,
        });
        self.cells.insert(name, cell);
    }

    /// An input with its buffer; the net inside.
    fn input(&mut self, name: &str) -> u32 {
        let (pad, inside) = (self.net(), self.net());
        let port = json!({ "direction": "input", "bits": [pad] });
        self.ports.insert(name.to_owned(), port);
        let pins: [(_, _, &[u32]); 2] = [("PAD", "input", &[pad]), ("O", "output", &[inside])];
        self.cell(format!("in_{name}"), "INBUF", &pins, 0);
        inside
    }

    fn output(&mut self, name: &str, inside: u32) {
        let pad = self.net();
        let port = json!({ "direction": "output", "bits": [pad] });
        self.ports.insert(name.to_owned(), port);
        let pins: [(_, _, &[u32]); 2] = [("PAD", "output", &[pad]), ("I", "input", &[inside])];
        self.cell(format!("out_{name}"), "OUTBUF", &pins, 0);
    }
}

/// A netlist of `tables` lookup tables with a register behind each, wired to
/// near ones mostly.
pub fn netlist(tables: usize) -> String {
    const PADS: usize = 16;
    let mut random = random();
    let mut list = Netlist {
        cells: Map::new(),
        ports: Map::new(),
        nets: 1,
    };
    let clock = list.input("clock");
    let mut signals: Vec<u32> = (0..PADS).map(|i| list.input(&format!("i{i}"))).collect();
    for i in 0..tables {
        let near = signals.len().min(40);
        let from = [(); 4].map(|()| signals[signals.len() - 1 - random.below(near)]);
        let (out, kept) = (list.net(), list.net());
        let table = 1 + random.below(65_534) as u32;
        let pins: [(_, _, &[u32]); 2] = [("I", "input", &from), ("F", "output", &[out])];
        list.cell(format!("lut{i}"), "LUT4", &pins, table);
        let pins: [(_, _, &[u32]); 3] = [
            ("CLK", "input", &[clock]),
            ("D", "input", &[out]),
            ("Q", "output", &[kept]),
        ];
        list.cell(format!("dff{i}"), "DFF", &pins, 0);
        signals.push(kept);
    }
    for i in 0..PADS {
        list.output(&format!("o{i}"), signals[signals.len() - 1 - i]);
    }
    let top = json!({
        "attributes": { "top": "1" }, "ports": list.ports, "cells": list.cells, "netnames": {},
    });
    json!({ "creator": "quire-bench", "modules": { "top": top } }).to_string()
}

/// A document of `pages` parts with text, tables and columns.
pub fn html(pages: usize) -> String {
    let mut random = random();
    let mut text = String::from(
        "<html><head><meta charset=\"utf-8\"><style>body{font-family:'DejaVu Sans'}\
         td{border:1px solid #888;padding:2px}h2{color:#336}div{float:left;width:45%;margin:2%}\
         </style></head><body>\n",
    );
    for page in 0..pages {
        for part in 0..4 {
            let _ = writeln!(text, "<h2>Part {page}.{part}</h2>");
            for _ in 0..4 {
                let words: Vec<_> = (0..60).map(|_| one_of(&mut random, &NOUNS)).collect();
                let _ = writeln!(text, "<div>{}</div>", words.join(" "));
            }
            text.push_str("<table style=\"clear:both\">\n");
            for _ in 0..25 {
                text.push_str("<tr>");
                for _ in 0..12 {
                    let _ = write!(text, "<td>{}</td>", random.below(10_000));
                }
                text.push_str("</tr>\n");
            }
            text.push_str("</table>\n");
        }
    }
    text.push_str("</body></html>\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_always_the_same() {
        for make in [network, sentences, text, netlist, html, statements, script] {
            assert_eq!(make(100), make(100));
        }
    }

    #[test]
    fn a_network_has_the_arcs_that_it_promises() {
        let text = network(500);
        let arcs = text.lines().filter(|l| l.starts_with("a ")).count();
        assert!(text.starts_with(&format!("p min 500 {arcs}\n")));
        let itself = |l: &str| {
            let mut words = l.split(' ').skip(1);
            words.next() == words.next()
        };
        assert!(!text.lines().filter(|l| l.starts_with("a ")).any(itself));
    }

    #[test]
    fn a_netlist_has_a_driver_for_each_net_and_no_more() {
        let netlist: Value = serde_json::from_str(&netlist(30)).unwrap();
        let cells = netlist["modules"]["top"]["cells"].as_object().unwrap();
        assert_eq!(cells.len(), 2 * 30 + 17 + 16);
        let mut driven: Vec<u64> = cells
            .values()
            .flat_map(|c| ["F", "Q", "O"].map(|pin| c["connections"][pin][0].as_u64()))
            .flatten()
            .collect();
        let all = driven.len();
        driven.sort_unstable();
        driven.dedup();
        assert_eq!(driven.len(), all);
    }
}
