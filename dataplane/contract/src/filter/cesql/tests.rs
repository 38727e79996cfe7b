//! Values of expressions, one table for each group of rules.

use std::borrow::Cow;

use super::super::tests::event;
use super::*;

const ENVELOPE: &str = r#"{"specversion":"1.0","id":"7","source":"/shop/1","type":"order.paid",
    "time":"2018-04-05T17:31:00Z","dataschema":"urn:s","n":5,"big":2147483648,"yes":true,"no":"False",
    "word":"Grüße","digits":"-12","hop1":"3","percent":"50% off","under":"a_b","data":1}"#;

pub(super) fn sample() -> EventRecord {
    event(&ENVELOPE.replace("2147483648", "\"2147483648\""))
}

enum ExpectedValue {
    Is(CesqlValue<'static>),
    Fails(CesqlError<'static>),
}

fn text(text: &'static str) -> ExpectedValue {
    ExpectedValue::Is(CesqlValue::Text(Cow::Borrowed(text)))
}

const fn number(number: i32) -> ExpectedValue {
    ExpectedValue::Is(CesqlValue::Integer(number))
}

const YES: ExpectedValue = ExpectedValue::Is(CesqlValue::Boolean(true));
const NO: ExpectedValue = ExpectedValue::Is(CesqlValue::Boolean(false));
const MISSING: ExpectedValue = ExpectedValue::Fails(CesqlError::MissingAttribute("absent"));
const ZERO: ExpectedValue = ExpectedValue::Fails(CesqlError::DivisionByZero);
const NO_INTEGER: ExpectedValue = ExpectedValue::Fails(CesqlError::Cast("Integer"));
const NO_BOOLEAN: ExpectedValue = ExpectedValue::Fails(CesqlError::Cast("Boolean"));
const OVERFLOW: ExpectedValue = ExpectedValue::Fails(CesqlError::Overflow);

fn check(cases: impl IntoIterator<Item = (&'static str, ExpectedValue)>) {
    let event = sample();
    for (text, expected) in cases {
        let expression = parse(text).unwrap_or_else(|why| panic!("{text}: {why}"));
        match (expression.evaluate(&event, &Steps::default()), expected) {
            (Ok(found), ExpectedValue::Is(value)) => assert_eq!(found, value, "{text}"),
            (Err(found), ExpectedValue::Fails(fault)) => assert_eq!(found, fault, "{text}"),
            (found, _) => panic!("{text} is {found:?}"),
        }
    }
}

/// X-SQL-01: types, and keywords in any case.
#[test]
fn literals_have_three_types() {
    check([
        ("TRUE", YES),
        ("false", NO),
        ("tRuE", YES),
        ("0", number(0)),
        ("-7", number(-7)),
        ("+7", number(7)),
        ("007", number(7)),
        ("2147483647", number(i32::MAX)),
        ("-2147483648", number(i32::MIN)),
        ("''", text("")),
        ("\"two words\"", text("two words")),
        ("'KeePs cAse'", text("KeePs cAse")),
        (r"'it\'s'", text("it's")),
        (r#""say \"hi\"""#, text("say \"hi\"")),
        (r#"'a "quoted" word'"#, text("a \"quoted\" word")),
        (r"'back\\slash\n'", text(r"back\\slash\n")),
        (" \t\r\n1 ", number(1)),
        ("((((1))))", number(1)),
    ]);
}

/// X-SQL-03, AMB-45: every attribute is a String.
#[test]
fn attributes_are_strings_and_missing_ones_are_errors() {
    check([
        ("type", text("order.paid")),
        ("TyPe", text("order.paid")),
        ("n", text("5")),
        ("yes", text("true")),
        ("hop1", text("3")),
        ("time", text("2018-04-05T17:31:00Z")),
        ("schemaurl", text("urn:s")),
        ("absent", MISSING),
        ("absent = 'x'", MISSING),
        ("'x' = absent", MISSING),
        ("absent != 'x'", MISSING),
        ("absent LIKE '%'", MISSING),
        ("absent IN ('x')", MISSING),
        ("NOT absent", MISSING),
        ("-absent", MISSING),
        ("absent / 0", MISSING),
        ("LENGTH(absent)", MISSING),
        ("IS_INT(absent)", MISSING),
    ]);
}

/// X-SQL-02, X-SQL-04.
#[test]
fn exists_checks_presence() {
    check([
        ("EXISTS id", YES),
        ("exists specversion AND EXISTS source AND EXISTS type", YES),
        ("EXISTS subject", NO),
        ("EXISTS time", YES),
        ("EXISTS yes", YES),
        ("EXISTS absent", NO),
        ("NOT EXISTS absent", YES),
        ("EXISTS absent AND absent = 'x'", NO),
    ]);
}

/// X-SQL-02, X-SQL-06: 32 bits, rounded towards zero, without wrapping.
#[test]
fn arithmetic_has_32_bits() {
    check([
        ("4 * 2 + 9 / 2", number(12)),
        ("4 * (2 + 9) / 2", number(22)),
        ("7 - 2 - 1", number(4)),
        ("7-2-1", number(4)),
        ("7 - -2", number(9)),
        ("100 / 10 / 5", number(2)),
        ("-7 / 2", number(-3)),
        ("-7 % 3", number(-1)),
        ("7 % -3", number(1)),
        ("--3", number(3)),
        ("-(1 + 2)", number(-3)),
        ("-n", number(-5)),
        ("'5' + TRUE", number(6)),
        ("5 / 0", ZERO),
        ("5 % FALSE", ZERO),
        ("'five' + 1", NO_INTEGER),
        ("big + 1", NO_INTEGER),
        ("2147483647 + 1", OVERFLOW),
        ("-2147483648 - 1", OVERFLOW),
        ("65536 * 65536", OVERFLOW),
        ("-(-2147483648)", OVERFLOW),
        ("-2147483648 / -1", OVERFLOW),
        ("-2147483648 % -1", OVERFLOW),
    ]);
}

/// X-SQL-05: the left side is converted to the right side's type; order is for Integers.
#[test]
fn comparisons_cast_to_right_type() {
    check([
        ("n = 5", YES),
        ("n = '5'", YES),
        ("n = '05'", NO),
        ("'05' = 5", YES),
        ("5 = '05'", NO),
        ("5 = n", YES),
        ("yes = TRUE", YES),
        ("no = false", YES),
        ("no = 'false'", NO),
        ("TRUE = 'TRUE'", NO),
        ("'TRUE' = TRUE", YES),
        ("TRUE = 1", YES),
        ("2 = TRUE", YES),
        ("word = 5", NO_INTEGER),
        ("word != 5", NO_INTEGER),
        ("word = TRUE", NO_BOOLEAN),
        ("type != 'order.paid'", NO),
        ("type <> 'other'", YES),
        ("n < 6", YES),
        ("n <= 5", YES),
        ("n > 5", NO),
        ("n >= '5'", YES),
        ("digits < hop1", YES),
        ("TRUE > FALSE", YES),
        ("'b' > 'a'", NO_INTEGER),
        ("1 < 2 = TRUE", YES),
        ("3 > 2 > 0", YES),
        ("1 + 1 = 4 / 2", YES),
    ]);
}

/// X-SQL-02, X-SQL-03: operands that cannot change the result are not evaluated.
#[test]
fn logic_short_circuits() {
    check([
        ("TRUE AND FALSE", NO),
        ("TRUE AND 'true'", YES),
        ("FALSE OR 1", YES),
        ("0 OR FALSE", NO),
        ("TRUE XOR TRUE", NO),
        ("FALSE XOR TRUE", YES),
        ("NOT FALSE", YES),
        ("NOT 'true'", NO),
        ("NOT NOT TRUE", YES),
        ("FALSE AND absent", NO),
        ("TRUE OR absent", YES),
        ("TRUE AND absent", MISSING),
        ("FALSE OR absent", MISSING),
        ("TRUE XOR absent", MISSING),
        ("FALSE AND 1 / 0 = 1", NO),
        ("TRUE AND 1 / 0 = 1", ZERO),
        ("TRUE AND word", NO_BOOLEAN),
        ("word OR TRUE", NO_BOOLEAN),
        ("NOT 'maybe'", NO_BOOLEAN),
        ("n = 5 AND yes AND type LIKE 'order.%' AND hop1 < 4 AND NOT no", YES),
    ]);
}

/// X-SQL-02: the reference grammar's order, in which `AND OR XOR` have equal precedence and group from the
/// right.
#[test]
fn operator_precedence_follows_reference_grammar() {
    check([
        ("FALSE AND FALSE OR TRUE", NO),
        ("(FALSE AND FALSE) OR TRUE", YES),
        ("TRUE OR FALSE AND FALSE", YES),
        ("TRUE XOR TRUE AND FALSE", YES),
        ("TRUE XOR FALSE OR TRUE", NO),
        ("TRUE XOR TRUE XOR TRUE", YES),
        ("TRUE XOR FALSE AND absent", YES),
        ("NOT FALSE OR TRUE", YES),
        ("NOT FALSE AND FALSE", NO),
        ("NOT TRUE = FALSE", YES),
        ("NOT type = 'x'", NO_BOOLEAN),
        ("NOT (type = 'x')", YES),
        ("NOT TRUE LIKE 'f%'", YES),
        ("-n LIKE '-_'", YES),
        ("10 + 2 LIKE '2'", number(11)),
        ("2 * 3 IN (3)", number(2)),
        ("1 = 2 IN (2)", YES),
    ]);
}

/// X-SQL-07.
#[test]
fn like_matches_runs_and_single_characters() {
    check([
        ("type LIKE 'order.paid'", YES),
        ("type LIKE 'order'", NO),
        ("type LIKE 'order%'", YES),
        ("type LIKE '%.paid'", YES),
        ("type LIKE '%r.p%'", YES),
        ("type LIKE '%'", YES),
        ("type LIKE ''", NO),
        ("'' LIKE ''", YES),
        ("'' LIKE '%%'", YES),
        ("'' LIKE '_'", NO),
        ("type LIKE 'ORDER%'", NO),
        ("type like '_rder_paid'", YES),
        ("type LIKE '%_d'", YES),
        ("word LIKE 'Gr__e'", YES),
        ("'aXbXc' LIKE 'a%b%c'", YES),
        ("'abab' LIKE '%ab'", YES),
        ("'aab' LIKE '%a_'", YES),
        ("'ab' LIKE 'ab%ab'", NO),
        (r"percent LIKE '50\% %'", YES),
        (r"'50x off' LIKE '50\% %'", NO),
        (r"under LIKE 'a\_b'", YES),
        (r"'axb' LIKE 'a\_b'", NO),
        (r"'a\b' LIKE 'a\b'", YES),
        ("type NOT LIKE 'invoice%'", YES),
        ("type NOT LIKE 'order%'", NO),
        ("234 LIKE '2_4'", YES),
        ("TRUE LIKE 'tr%'", YES),
        (r#"type LIKE "order%""#, YES),
    ]);
}

/// X-SQL-02, X-SQL-05: members are converted to the type of the left side.
#[test]
fn in_casts_members_to_left_type() {
    check([
        ("type IN ('a', 'order.paid')", YES),
        ("type IN ('a')", NO),
        ("type NOT IN ('a')", YES),
        ("n IN (4, 5)", YES),
        ("5 IN ('05')", YES),
        ("5 IN (1 + 4)", YES),
        ("TRUE IN (0, 'TRUE')", YES),
        ("5 IN ('five')", NO_INTEGER),
        ("5 IN (5, 'five')", YES),
        ("'x' IN (type, absent)", MISSING),
        ("NOT (1 IN (2)) AND 1 IN (1)", YES),
    ]);
}

/// X-SQL-08.
#[test]
fn functions_on_strings() {
    const LEFT: ExpectedValue = ExpectedValue::Fails(CesqlError::Argument("LEFT"));
    const RIGHT: ExpectedValue = ExpectedValue::Fails(CesqlError::Argument("RIGHT"));
    const SUBSTRING: ExpectedValue = ExpectedValue::Fails(CesqlError::Argument("SUBSTRING"));
    check([
        ("LENGTH(word)", number(5)),
        ("length('')", number(0)),
        ("LENGTH(TRUE)", number(4)),
        ("CONCAT()", text("")),
        ("CONCAT(n, '-', TRUE)", text("5-true")),
        ("CONCAT_WS('/', 'a', '', 'c')", text("a//c")),
        ("concat_ws(',')", text("")),
        ("LOWER('ÄbC')", text("äbc")),
        ("LOWER(type)", text("order.paid")),
        ("UPPER('äbc')", text("ÄBC")),
        ("TRIM('  a b\t')", text("a b")),
        ("LEFT(word, 3)", text("Grü")),
        ("LEFT(word, 99)", text("Grüße")),
        ("LEFT(word, 0)", text("")),
        ("LEFT(word, -1)", LEFT),
        ("RIGHT(word, 2)", text("ße")),
        ("RIGHT(word, 99)", text("Grüße")),
        ("RIGHT(word, -1)", RIGHT),
        ("RIGHT(CONCAT('a', word), 5)", text("Grüße")),
        ("SUBSTRING(word, 1)", text("Grüße")),
        ("SUBSTRING(word, 4)", text("ße")),
        ("SUBSTRING(word, -2)", text("ße")),
        ("SUBSTRING(word, 0)", text("")),
        ("SUBSTRING(word, 5)", text("e")),
        ("SUBSTRING(word, 6)", SUBSTRING),
        ("SUBSTRING(word, -5)", text("Grüße")),
        ("SUBSTRING(word, -6)", SUBSTRING),
        ("SUBSTRING(word, -2147483648)", SUBSTRING),
        ("SUBSTRING(word, 2, 2)", text("rü")),
        ("SUBSTRING(word, -4, 2)", text("rü")),
        ("SUBSTRING(word, 2, 99)", text("rüße")),
        ("SUBSTRING(word, 2, 0)", text("")),
        ("SUBSTRING(word, 0, 3)", text("")),
        ("SUBSTRING(word, 2, -1)", SUBSTRING),
    ]);
}

/// X-SQL-08, X-SQL-05.
#[test]
fn functions_on_integers_and_types() {
    check([
        ("ABS(-4)", number(4)),
        ("ABS('4')", number(4)),
        ("ABS(-2147483648)", OVERFLOW),
        ("INT('12')", number(12)),
        ("INT(digits)", number(-12)),
        ("INT(TRUE)", number(1)),
        ("INT('1.5')", NO_INTEGER),
        ("INT('')", NO_INTEGER),
        ("BOOL('TRUE')", YES),
        ("BOOL(0)", NO),
        ("BOOL(-3)", YES),
        ("BOOL('1')", NO_BOOLEAN),
        ("STRING(12)", text("12")),
        ("STRING(FALSE)", text("false")),
        ("IS_INT('12')", YES),
        ("IS_INT('x')", NO),
        ("IS_INT(FALSE)", YES),
        ("IS_BOOL('true')", YES),
        ("IS_BOOL('1')", NO),
        ("IS_BOOL(1)", YES),
    ]);
}

/// X-SQL-06: such a call parses, and fails when it is evaluated.
#[test]
fn unknown_function_is_evaluation_error() {
    check([
        ("LENGHT('a')", ExpectedValue::Fails(CesqlError::MissingFunction("LENGHT"))),
        ("LENGTH()", ExpectedValue::Fails(CesqlError::MissingFunction("LENGTH"))),
        ("LENGTH('a', 'b')", ExpectedValue::Fails(CesqlError::MissingFunction("LENGTH"))),
        ("CONCAT_WS()", ExpectedValue::Fails(CesqlError::MissingFunction("CONCAT_WS"))),
        ("TRUE OR LENGHT('a')", YES),
    ]);
}

#[test]
fn text_built_by_functions_is_bounded() {
    let long = format!("'{}'", "x".repeat(4000));
    let event = sample();
    let twice = parse(&format!("LENGTH(CONCAT({long}, {long}))")).unwrap();
    assert_eq!(twice.evaluate(&event, &Steps::default()), Ok(CesqlValue::Integer(8000)));

    let grown = event_with_word(&"x".repeat(TEXT_BYTES_MAX / 2 + 1));
    assert_eq!(parse("CONCAT(word, word)").unwrap().evaluate(&grown, &Steps::default()), Err(CesqlError::TooLong));
}

fn event_with_word(word: &str) -> EventRecord {
    event(&format!(r#"{{"specversion":"1.0","id":"7","source":"/s","type":"t","word":"{word}"}}"#))
}

/// X-FLT-11: an error says where and why.
#[test]
fn invalid_expression_is_rejected_with_position() {
    for (text, position, reason) in [
        ("", 1, "is missing at the end"),
        ("  ", 3, "is missing at the end"),
        ("type =", 7, "is missing at the end"),
        ("type = 'x", 8, "no closing '"),
        (r"type = 'x\'", 8, "no closing '"),
        ("(type = 'x'", 12, "is missing at the end"),
        ("type = 'x')", 11, "an operator or the end"),
        ("type == 'x'", 7, "\"=\" where"),
        ("type 'x'", 6, "an operator or the end"),
        ("'ü' = type 'x'", 12, "an operator or the end"),
        ("type = $x", 8, "'$' is not valid"),
        ("2147483648 = n", 1, "outside"),
        ("n = -2147483649", 5, "outside"),
        ("+n", 2, "a number"),
        ("type LIKE subject", 11, "a pattern in quotes"),
        ("type NOT = 'x'", 10, "LIKE or IN"),
        ("type IN ()", 10, "an attribute"),
        ("type IN 'x'", 9, "\"(\""),
        ("type IN ('x' 'y')", 14, "\",\" or \")\""),
        ("EXISTS 'type'", 8, "an attribute"),
        ("LENGTH('a'", 11, "is missing"),
        ("LENGTH('a',)", 12, "an attribute"),
        ("ext_ension = 1", 1, "name of an attribute"),
        ("SHA1('a')", 1, "name of a function"),
        ("AND", 1, " where "),
    ] {
        let Err(found) = parse(text) else { panic!("{text} parses") };
        assert_eq!(found.position, position, "{text}: {found}");
        assert!(found.reason.contains(reason), "{text}: {found}");
    }
}

#[test]
fn depth_and_length_are_bounded() {
    let nested = |depth: usize| format!("{}1{}", "(".repeat(depth), ")".repeat(depth));
    assert!(parse(&nested(DEPTH_MAX - 1)).is_ok());
    assert!(parse(&nested(DEPTH_MAX)).unwrap_err().reason.contains("nested"));
    for long in [
        "NOT ".repeat(2000),
        "-".repeat(8000),
        "LENGTH(".repeat(1000),
        format!("1{}", " + 1".repeat(2000)),
        format!("1{}", " = 1".repeat(2000)),
        format!("1{}", " LIKE '1'".repeat(900)),
    ] {
        assert!(parse(&long).unwrap_err().reason.contains("nested"), "{}", &long[..20]);
    }
    let chain = format!("TRUE{}", " AND TRUE".repeat(900));
    assert!(parse(&chain).unwrap().holds(&sample(), &Steps::default()), "a chain is not nested");

    let long = " ".repeat(EXPRESSION_BYTES_MAX);
    assert!(parse(&format!("{long}1")).unwrap_err().reason.contains("bytes"));
}
