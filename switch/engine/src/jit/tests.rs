//! Native code and interpreter leave the same frame after random instructions.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, LazyLock};

use proptest::prelude::*;

use super::*;
use crate::state::Shared;

const FEATURES: &[u8] = include_bytes!("../../tests/programs/features.json");
/// Slots that the instructions use: more than registers, so that values are written back.
const FIELDS: u32 = 14;
const TEMPORARIES: u32 = 6;
/// Constants that fit each form of an immediate, and some that fit none.
const CONSTANTS: [u64; 7] = [0, 1, 0x7fff_ffff, 0xffff_ffff, 1 << 40, u64::MAX, 0x8000_0000_0000_0000];

/// A random instruction: operation, widths and operands are reduced to what is allowed.
type Draft = (usize, u8, u16, u32, u32, u32);

fn drafts() -> impl Strategy<Value = Vec<Draft>> {
    prop::collection::vec(
        (any::<usize>(), any::<u8>(), any::<u16>(), any::<u32>(), any::<u32>(), any::<u32>()),
        1..120,
    )
}

/// The program's code replaced by the instructions, with jumps forward only.
fn code(program: &Program, drafts: &[Draft]) -> Code {
    use Op::*;
    const OPS: [Op; 41] = [
        Mov, Add, Sub, Mul, And, Or, Xor, Not, Shl, Shr, Sar, ShlI, ShrI, SarI, Rotl, Rotl, Rotl, Funnel,
        Sext, Eq, Ne, Ult, Ule, Slt, Sle, UMin, SMin, SMax, Div, Rem, MovZ, AddN, EqN, RegLoad, RegStore, Jz,
        Jnz, JEq, JNe, JUlt, JUge,
    ];
    let fields = program.phv_slots - FIELDS;
    let constants = fields + FIELDS + TEMPORARIES;
    let one_limb = |r: &u32| program.register_limbs[*r as usize] == 1;
    let register = (0..program.register_limbs.len() as u32).find(one_limb).expect("a register");
    let end = drafts.len() as u32 * 2;
    let mut ins = Vec::new();
    for (op, w, x, a, b, c) in drafts {
        let op = OPS[op % OPS.len()];
        let pc = ins.len() as u32;
        let target = fields + a % (FIELDS + TEMPORARIES - 1);
        let operand = |n: u32| fields + n % (FIELDS + TEMPORARIES + CONSTANTS.len() as u32 - 1);
        let (mut w, mut x, mut a, mut b, mut c) = (1 + w % 64, *x, target, operand(*b), operand(*c));
        let mut before = Ins::new(Mov, target, target, 0);
        match op {
            ShlI | ShrI | SarI => x %= 64,
            Funnel => x = 1 + x % 63,
            Sext => x = 1 + x % 64,
            Rotl => {
                // A rotation's operand has at most its width.
                w = if w % 2 == 0 { 32 } else { 64 };
                x = 1 + x % 31;
                before = Ins::new(Mov, b.min(constants - 1), b, 0).w(w.into());
                b = before.a;
            }
            AddN | EqN => (x, b, c) = (2, b.min(constants - 2), c.min(constants - 2)),
            RegLoad => c = register,
            RegStore => a = register,
            Jz | Jnz | JEq | JNe | JUlt | JUge => a = (pc + 2 + u32::from(x % 12) * 2).min(end),
            _ => {}
        }
        ins.push(before);
        ins.push(Ins { op, w, x, a, b, c });
    }
    ins.push(Ins::new(End, 0, 0, 0));
    Code {
        ins,
        parser_end: end,
        slots: constants + CONSTANTS.len() as u32,
        constants: (constants..).zip(CONSTANTS).collect(),
        ..Code::default()
    }
}

/// The program, to whose fields the first slots behind them are added.
fn program() -> &'static Program {
    static PROGRAM: LazyLock<Program> = LazyLock::new(|| {
        let program = Program::from_json(FEATURES).expect("the program loads");
        let mut program = Arc::into_inner(program).expect("one owner");
        program.phv_slots += FIELDS;
        program
    });
    &PROGRAM
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    /// Fields and registers are equal afterwards. Temporaries are not compared: native code need
    /// not write them.
    #[test]
    fn random_code_has_the_interpreters_result(
        drafts in drafts(),
        values in prop::collection::vec(prop_oneof![any::<u64>(), 0u64..20], (FIELDS + TEMPORARIES) as usize),
    ) {
        let program = program();
        let code = code(program, &drafts);
        let first = program.phv_slots - FIELDS;
        let Some(native) = compile(program, &code, false) else { return Ok(()) };
        let results = [true, false].map(|natively| {
            let rt = Runtime::new(1, program, Arc::new(Shared::new(&program.info)));
            let mut vm = Vm::new(1);
            vm.load(program, &code, 511);
            vm.frame[first as usize..][..values.len()].copy_from_slice(&values);
            let mut packet = Packet { data: &[], taken: 0, ingress_length: 0, written: 0 };
            if natively {
                native.run(&mut vm, program, &code, &rt, &mut packet, 0);
            } else {
                vm.run(program, &code, &rt, &mut packet, 0);
            }
            let cells: Vec<u64> = rt.shared.registers.iter().flat_map(|r| r.iter()).map(|c| c.load(Relaxed)).collect();
            (vm.frame[first as usize..][..FIELDS as usize].to_vec(), cells)
        });
        prop_assert_eq!(&results[0], &results[1]);
    }
}
