//! Which memory an instruction uses, given the registers before it.

use iced_x86::{
    Decoder, DecoderOptions, Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic,
    OpAccess, OpKind, Register, UsedMemory,
};
use quire_core::units::VirtAddr;
use quire_linux::ptrace::{Registers, VectorRegisters};

/// The longest instruction, in bytes.
pub const LONGEST: usize = 15;

/// Memory that an instruction uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Where it begins.
    pub addr: VirtAddr,
    /// Its size in bytes, at least 1.
    pub len: u64,
}

/// What an instruction does to memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decoded {
    /// Its length in bytes.
    pub len: u64,
    /// The memory that it reads or writes.
    pub operands: Vec<Operand>,
    /// Whether it is one round of a repeated string instruction.
    pub is_round: bool,
    /// Whether it enters the kernel, and may block there.
    pub is_system_call: bool,
    /// Where it saves the flags, if it does.
    pub saves_flags_at: Option<VirtAddr>,
}

/// Decodes instructions of 64-bit programs.
#[derive(Debug)]
pub struct Instructions {
    factory: InstructionInfoFactory,
}

impl Default for Instructions {
    fn default() -> Instructions {
        Instructions {
            factory: InstructionInfoFactory::new(),
        }
    }
}

impl Instructions {
    /// Decodes the instruction that `code` begins with. The vector registers
    /// are asked for only where addresses are made of them. `None` where it is
    /// no instruction, or addresses cannot be found out.
    pub fn decode(
        &mut self,
        code: &[u8],
        registers: &Registers,
        vectors: impl FnOnce() -> Option<VectorRegisters>,
    ) -> Option<Decoded> {
        let mut decoder = Decoder::with_ip(64, code, registers.ip.0, DecoderOptions::NONE);
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return None;
        }
        let mut decoded = Decoded {
            len: instruction.len() as u64,
            is_round: is_repeated(&instruction),
            is_system_call: enters_kernel(&instruction),
            ..Decoded::default()
        };
        let rounds_left = registers.general[Register::RCX.number()];
        if decoded.is_round && rounds_left == 0 {
            return Some(decoded);
        }
        let options = InstructionInfoOptions::NO_REGISTER_USAGE;
        let used = self.factory.info_options(&instruction, options);
        if instruction.is_vsib() {
            let lanes = Lanes::of(&instruction, &vectors()?)?;
            for memory in used.used_memory() {
                decoded.operands.extend(lanes.operands(memory, registers));
            }
            return Some(decoded);
        }
        for memory in used.used_memory() {
            if memory.access() == OpAccess::NoMemAccess {
                continue;
            }
            let addr = memory.virtual_address(0, |register, _, _| value(register, registers))?;
            decoded.operands.push(Operand {
                addr: VirtAddr(addr),
                len: (memory.memory_size().size() as u64).max(1),
            });
        }
        if matches!(instruction.mnemonic(), Mnemonic::Pushfq | Mnemonic::Pushf) {
            decoded.saves_flags_at = decoded.operands.first().map(|operand| operand.addr);
        }
        Some(decoded)
    }
}

fn is_repeated(instruction: &Instruction) -> bool {
    let repeats = instruction.has_rep_prefix() || instruction.has_repne_prefix();
    repeats && instruction.is_string_instruction()
}

fn enters_kernel(instruction: &Instruction) -> bool {
    use Mnemonic::{Int, Syscall, Sysenter};
    matches!(instruction.mnemonic(), Int | Syscall | Sysenter)
}

/// The value of a register, or the base of a segment.
fn value(register: Register, registers: &Registers) -> Option<u64> {
    match register {
        Register::FS => Some(registers.fs_base),
        Register::GS => Some(registers.gs_base),
        Register::ES | Register::CS | Register::SS | Register::DS => Some(0),
        Register::RIP => Some(registers.ip.0),
        _ if register.is_gpr64() => registers.general.get(register.number()).copied(),
        _ if register.is_gpr32() => {
            let full = registers.general.get(register.number())?;
            Some(*full & u64::from(u32::MAX))
        }
        _ => None,
    }
}

/// The lanes of a gather or scatter that are switched on, with their indexes.
struct Lanes {
    /// For each lane, the index where the mask allows the access.
    indexes: Vec<Option<u64>>,
}

impl Lanes {
    fn of(instruction: &Instruction, vectors: &VectorRegisters) -> Option<Lanes> {
        let index = instruction.memory_index();
        let index_size = if instruction.is_vsib64() { 8 } else { 4 };
        let element = instruction.memory_size().element_size();
        // A prefetching gather has no register for data.
        let data = (0..instruction.op_count())
            .filter(|op| instruction.op_kind(*op) == OpKind::Register)
            .map(|op| instruction.op_register(op))
            .next()?;
        if element == 0 || !data.is_vector_register() {
            return None;
        }
        let count = (index.size() / index_size).min(data.size() / element);
        let values = vectors.vector(index.number());
        let mask = Self::mask(instruction, vectors, element)?;
        let indexes = (0..count).map(|lane| {
            let bytes = &values[lane * index_size..][..index_size];
            let unsigned = bytes
                .iter()
                .rev()
                .fold(0, |word, byte| word << 8 | u64::from(*byte));
            (mask >> lane & 1 == 1).then_some(unsigned)
        });
        Some(Lanes {
            indexes: indexes.collect(),
        })
    }

    /// The lanes that the mask switches on, a bit for each: a mask register, or,
    /// for the older gathers, the highest bits of a vector register's elements.
    fn mask(instruction: &Instruction, vectors: &VectorRegisters, element: usize) -> Option<u64> {
        let register = instruction.op_mask();
        if register != Register::None {
            return Some(vectors.mask(register.number()));
        }
        let last = instruction.op_count().checked_sub(1)?;
        let values = vectors.vector(instruction.op_register(last).number());
        let elements = values.chunks_exact(element).enumerate();
        Some(elements.fold(0, |bits, (lane, bytes)| {
            bits | u64::from(bytes[element - 1] >> 7) << lane
        }))
    }

    fn operands(&self, memory: &UsedMemory, registers: &Registers) -> Vec<Operand> {
        let one = |lane: usize| {
            let addr = memory.virtual_address(lane, |register, lane, size| match size {
                0 => value(register, registers),
                _ => *self.indexes.get(lane)?,
            })?;
            Some(Operand {
                addr: VirtAddr(addr),
                len: (memory.memory_size().element_size() as u64).max(1),
            })
        };
        (0..self.indexes.len()).filter_map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registers() -> Registers {
        let mut general = [0; 16];
        general
            .iter_mut()
            .zip(0..)
            .for_each(|(r, i)| *r = 0x1000 * (i + 1));
        Registers {
            general,
            ip: VirtAddr(0x40_0000),
            fs_base: 0xf000_0000,
            gs_base: 0,
            is_64_bit: true,
        }
    }

    fn decode(code: &[u8], registers: &Registers) -> Decoded {
        let decoded = Instructions::default().decode(code, registers, || None);
        decoded.expect("an instruction")
    }

    fn operands(code: &[u8]) -> Vec<(u64, u64)> {
        let decoded = decode(code, &registers());
        assert_eq!(decoded.len, code.len() as u64);
        let list = decoded.operands.iter();
        list.map(|operand| (operand.addr.0, operand.len)).collect()
    }

    // rax = 0x1000, rcx = 0x2000, rdx = 0x3000, rbx = 0x4000, rsp = 0x5000,
    // rbp = 0x6000, rsi = 0x7000, rdi = 0x8000.
    #[test]
    fn addresses_of_ordinary_instructions() {
        // mov rax, [rbx + rcx*8 + 0x10]
        assert_eq!(operands(&[0x48, 0x8b, 0x44, 0xcb, 0x10]), [(0x14010, 8)]);
        // mov dword [rip + 0x100], 1: from the next instruction
        assert_eq!(
            operands(&[0xc7, 0x05, 0, 1, 0, 0, 1, 0, 0, 0]),
            [(0x40_010a, 4)]
        );
        // mov rax, fs:[0x28]
        assert_eq!(
            operands(&[0x64, 0x48, 0x8b, 0x04, 0x25, 0x28, 0, 0, 0]),
            [(0xf000_0028, 8)]
        );
        // mov eax, [ebx - 8], with 32-bit addresses
        assert_eq!(operands(&[0x67, 0x8b, 0x43, 0xf8]), [(0x3ff8, 4)]);
        // vmovupd ymm0, [rdi]
        assert_eq!(operands(&[0xc5, 0xfd, 0x10, 0x07]), [(0x8000, 32)]);
        // lea rax, [rbx] and prefetcht0 [rbx] and add rax, rbx use none
        assert_eq!(operands(&[0x48, 0x8d, 0x03]), []);
        assert_eq!(operands(&[0x0f, 0x18, 0x0b]), []);
        assert_eq!(operands(&[0x48, 0x01, 0xd8]), []);
    }

    #[test]
    fn the_stack_is_used_by_push_pop_call_and_return() {
        assert_eq!(operands(&[0x53]), [(0x4ff8, 8)]);
        assert_eq!(operands(&[0x5b]), [(0x5000, 8)]);
        assert_eq!(operands(&[0xe8, 0, 0, 0, 0]), [(0x4ff8, 8)]);
        assert_eq!(operands(&[0xc3]), [(0x5000, 8)]);
        // push qword [rax] reads and writes
        let mut both = operands(&[0xff, 0x30]);
        both.sort_unstable();
        assert_eq!(both, [(0x1000, 8), (0x4ff8, 8)]);
        let decoded = decode(&[0x9c], &registers());
        assert_eq!(decoded.saves_flags_at, Some(VirtAddr(0x4ff8)));
    }

    #[test]
    fn string_instructions_are_rounds() {
        let code = [0xf3, 0x48, 0xa5]; // rep movsq
        let decoded = decode(&code, &registers());
        assert!(decoded.is_round);
        let mut addrs: Vec<u64> = decoded.operands.iter().map(|o| o.addr.0).collect();
        addrs.sort_unstable();
        assert_eq!(addrs, [0x7000, 0x8000]);
        let mut none_left = registers();
        none_left.general[1] = 0;
        assert_eq!(decode(&code, &none_left).operands, []);
        // Without the prefix it is an ordinary instruction.
        assert!(!decode(&[0x48, 0xa5], &none_left).is_round);
    }

    #[test]
    fn system_calls_are_told() {
        assert!(decode(&[0x0f, 0x05], &registers()).is_system_call);
        assert!(decode(&[0xcd, 0x80], &registers()).is_system_call);
        assert!(!decode(&[0x90], &registers()).is_system_call);
        let nonsense = Instructions::default().decode(&[0x06], &registers(), || None);
        assert_eq!(nonsense, None);
    }
}
