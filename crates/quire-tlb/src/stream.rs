//! From instructions to accesses of pages.
//!
//! Data: one access for each operand, and one more for each further page that
//! it reaches into. Code: one access for each fetch of a line of 64 bytes that
//! is another than the one before. The rounds of a repeated string instruction
//! count as one instruction, and its operands as one access for each line,
//! because processors move whole lines.

use quire_core::tlb::Kind;
use quire_core::units::{BASE_PAGE, VirtAddr};

use crate::decode::Decoded;

/// The bytes that are fetched, or moved by a string instruction, at once.
const LINE: u64 = 64;

/// Turns instructions into accesses.
#[derive(Debug, Default)]
pub struct Stream {
    fetched_line: Option<u64>,
    /// The string instruction that is being repeated: where it is, and the
    /// lines that its operands were on last.
    repeated: Option<(VirtAddr, Vec<u64>)>,
}

impl Stream {
    /// Feeds the instruction at `ip` to `access`. Says whether it is a new
    /// instruction, and not a further round of the one before.
    pub fn feed(
        &mut self,
        ip: VirtAddr,
        decoded: &Decoded,
        mut access: impl FnMut(VirtAddr, Kind),
    ) -> bool {
        let lines: Vec<u64> = decoded.operands.iter().map(|o| o.addr.0 / LINE).collect();
        let before = self
            .repeated
            .take()
            .filter(|(at, _)| decoded.is_round && *at == ip);
        let is_new = before.is_none();
        if is_new {
            self.fetch(ip, decoded.len, &mut access);
        }
        for (index, operand) in decoded.operands.iter().enumerate() {
            let known = before.as_ref().and_then(|(_, old)| old.get(index));
            if known == lines.get(index) {
                continue;
            }
            for addr in pages(operand.addr, operand.len) {
                access(addr, Kind::Data);
            }
        }
        if decoded.is_round {
            self.repeated = Some((ip, lines));
        }
        is_new
    }

    fn fetch(&mut self, ip: VirtAddr, len: u64, access: &mut impl FnMut(VirtAddr, Kind)) {
        let last = ip.0.saturating_add(len.saturating_sub(1)) / LINE;
        for line in ip.0 / LINE..=last {
            if self.fetched_line.replace(line) != Some(line) {
                access(VirtAddr(line * LINE), Kind::Code);
            }
        }
    }
}

/// An address on each page that `len` bytes from `addr` reach into.
fn pages(addr: VirtAddr, len: u64) -> impl Iterator<Item = VirtAddr> {
    let last = VirtAddr(addr.0.saturating_add(len.saturating_sub(1)));
    let further = (addr.page_floor().0..=last.page_floor().0).step_by(BASE_PAGE as usize);
    std::iter::once(addr).chain(further.skip(1).map(VirtAddr))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::Operand;

    fn instruction(len: u64, operands: &[(u64, u64)], is_round: bool) -> Decoded {
        let operands = operands.iter().map(|(addr, len)| Operand {
            addr: VirtAddr(*addr),
            len: *len,
        });
        Decoded {
            len,
            operands: operands.collect(),
            is_round,
            ..Decoded::default()
        }
    }

    fn feed(stream: &mut Stream, ip: u64, decoded: &Decoded) -> (bool, Vec<(u64, Kind)>) {
        let mut list = Vec::new();
        let is_new = stream.feed(VirtAddr(ip), decoded, |addr, kind| {
            list.push((addr.0, kind))
        });
        (is_new, list)
    }

    #[test]
    fn operands_that_cross_pages_are_accesses_to_each() {
        let mut stream = Stream::default();
        let crossing = instruction(4, &[(0x1ffc, 8), (0x3000, 8)], false);
        let (_, list) = feed(&mut stream, 0, &crossing);
        let data = [
            (0x1ffc, Kind::Data),
            (0x2000, Kind::Data),
            (0x3000, Kind::Data),
        ];
        assert_eq!(list[0], (0, Kind::Code));
        assert_eq!(list[1..], data);
    }

    #[test]
    fn code_is_fetched_in_lines() {
        let mut stream = Stream::default();
        let plain = instruction(4, &[], false);
        assert_eq!(feed(&mut stream, 0, &plain).1, [(0, Kind::Code)]);
        assert_eq!(feed(&mut stream, 4, &plain).1, []);
        assert_eq!(feed(&mut stream, 62, &plain).1, [(64, Kind::Code)]);
        assert_eq!(feed(&mut stream, 0, &plain).1, [(0, Kind::Code)]);
    }

    #[test]
    fn rounds_are_one_instruction_and_an_access_for_each_line() {
        let mut stream = Stream::default();
        let round = |n: u64| instruction(3, &[(0x1000 + 8 * n, 8)], true);
        let mut news = 0;
        let mut data = 0;
        for n in 0..16 {
            let (is_new, list) = feed(&mut stream, 0, &round(n));
            news += u64::from(is_new);
            data += list.iter().filter(|(_, kind)| *kind == Kind::Data).count();
        }
        assert_eq!((news, data), (1, 2));
        // The same instruction again, after another one.
        feed(&mut stream, 3, &instruction(1, &[], false));
        assert!(feed(&mut stream, 0, &round(0)).0);
    }
}
