//! The BPF program of the filter: a few exceptions first, then sorted ranges of call numbers.
//!
//! The kernel runs it once for each call that is always allowed and remembers that (since Linux 5.11), so its length matters
//! for the exceptions only.

use std::collections::BTreeSet;

use seccompiler::{BpfProgram, sock_filter};

/// The decision for one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exception {
    /// As if the kernel did not have it.
    Unknown,
    /// Only with an argument, the low half of the first, in which none of these bits is set.
    Unset(u32),
    /// Only with a first argument other than these.
    NoneOf(&'static [u32]),
    /// Only with one of these as its first argument.
    OneOf(&'static [u32]),
}

/// All rules of one filter.
#[derive(Debug, Default)]
pub(super) struct Rules {
    pub(super) allowed: BTreeSet<u32>,
    pub(super) exceptions: Vec<(u32, Exception)>,
}

const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const JUMP_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
const JUMP_GREATER: u16 = 0x25; // BPF_JMP | BPF_JGT | BPF_K
const JUMP_GREATER_EQUAL: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
const JUMP_SET: u16 = 0x45; // BPF_JMP | BPF_JSET | BPF_K
const RETURN: u16 = 0x06; // BPF_RET | BPF_K

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
/// Its low half, on a little-endian machine.
const FIRST_ARGUMENT: u32 = 16;

const ALLOW: u32 = 0x7fff_0000;
const ERRNO: u32 = 0x0005_0000;
const NOT_PERMITTED: u32 = ERRNO | 1; // EPERM
const UNKNOWN: u32 = ERRNO | 38; // ENOSYS

#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 0xc000_00b7;
/// Marks calls of the x32 ABI, which has the architecture of x86-64. No other call has a number so large.
const X32: u32 = 0x4000_0000;

pub(super) fn assemble(rules: &Rules) -> BpfProgram {
    let mut program = vec![
        op(LOAD, ARCHITECTURE),
        jump(JUMP_EQUAL, NATIVE, 1, 0),
        op(RETURN, UNKNOWN),
        op(LOAD, NUMBER),
        jump(JUMP_GREATER_EQUAL, X32, 0, 1),
        op(RETURN, UNKNOWN),
    ];
    for (number, exception) in &rules.exceptions {
        let steps = steps(*exception);
        let behind = u8::try_from(steps.len()).expect("an exception is a few steps");
        program.push(jump(JUMP_EQUAL, *number, 0, behind));
        program.extend(steps);
    }
    for (first, last) in ranges(&rules.allowed) {
        program.extend([
            jump(JUMP_GREATER, last, 3, 0),
            jump(JUMP_GREATER_EQUAL, first, 0, 1),
            op(RETURN, ALLOW),
            op(RETURN, NOT_PERMITTED),
        ]);
    }
    program.push(op(RETURN, NOT_PERMITTED));
    program
}

/// They end with an answer.
fn steps(exception: Exception) -> Vec<sock_filter> {
    let [allow, refuse] = [op(RETURN, ALLOW), op(RETURN, NOT_PERMITTED)];
    let argument = op(LOAD, FIRST_ARGUMENT);
    match exception {
        Exception::Unknown => vec![op(RETURN, UNKNOWN)],
        Exception::Unset(bits) => vec![argument, jump(JUMP_SET, bits, 1, 0), allow, refuse],
        Exception::NoneOf(values) => {
            let tests = values.iter().flat_map(|value| [jump(JUMP_EQUAL, *value, 0, 1), op(RETURN, NOT_PERMITTED)]);
            std::iter::once(argument).chain(tests).chain([allow]).collect()
        }
        Exception::OneOf(values) => {
            let tests = values.iter().flat_map(|value| [jump(JUMP_EQUAL, *value, 0, 1), op(RETURN, ALLOW)]);
            std::iter::once(argument).chain(tests).chain([refuse]).collect()
        }
    }
}

/// Numbers that follow each other are one range.
fn ranges(numbers: &BTreeSet<u32>) -> Vec<(u32, u32)> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => ranges.push((*number, *number)),
        }
    }
    ranges
}

fn op(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

fn jump(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The kernel's result for a call.
    pub(crate) fn run(program: &[sock_filter], architecture: u32, number: u32, argument: u32) -> u32 {
        let (mut at, mut loaded) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at].clone();
            let holds = match code {
                LOAD => {
                    loaded = [(NUMBER, number), (ARCHITECTURE, architecture), (FIRST_ARGUMENT, argument)]
                        .iter()
                        .find(|(offset, _)| *offset == k)
                        .unwrap()
                        .1;
                    at += 1;
                    continue;
                }
                RETURN => return k,
                JUMP_EQUAL => loaded == k,
                JUMP_GREATER => loaded > k,
                JUMP_GREATER_EQUAL => loaded >= k,
                JUMP_SET => loaded & k != 0,
                other => panic!("unexpected instruction {other:#x}"),
            };
            at += 1 + usize::from(if holds { jt } else { jf });
        }
    }

    fn answer(rules: &Rules, number: u32, argument: u32) -> u32 {
        run(&assemble(rules), NATIVE, number, argument)
    }

    #[test]
    fn numbers_outside_ranges_are_refused() {
        let rules = Rules { allowed: [0, 1, 2, 5, 9].into(), ..Rules::default() };
        for number in 0..12 {
            let wanted = if rules.allowed.contains(&number) { ALLOW } else { NOT_PERMITTED };
            assert_eq!(answer(&rules, number, 0), wanted, "{number}");
        }
        assert_eq!(answer(&rules, u32::MAX, 0), UNKNOWN);
    }

    #[test]
    fn exceptions_look_at_argument() {
        let rules = Rules {
            allowed: [7].into(),
            exceptions: vec![
                (3, Exception::Unknown),
                (4, Exception::Unset(0x6)),
                (5, Exception::NoneOf(&[38, 40])),
                (6, Exception::OneOf(&[0, 8])),
            ],
        };
        for (number, argument, wanted) in [
            (3, 0, UNKNOWN),
            (4, 0x9, ALLOW),
            (4, 0x2, NOT_PERMITTED),
            (5, 1, ALLOW),
            (5, 38, NOT_PERMITTED),
            (5, 39, ALLOW),
            (5, 40, NOT_PERMITTED),
            (6, 8, ALLOW),
            (6, 9, NOT_PERMITTED),
            (7, 9, ALLOW),
            (8, 0, NOT_PERMITTED),
        ] {
            assert_eq!(answer(&rules, number, argument), wanted, "{number} {argument}");
        }
    }

    #[test]
    fn foreign_architecture_is_unknown() {
        let rules = Rules { allowed: [0].into(), ..Rules::default() };
        assert_eq!(run(&assemble(&rules), 0x4000_0003, 0, 0), UNKNOWN);
        assert_eq!(answer(&rules, X32, 0), UNKNOWN);
    }
}
