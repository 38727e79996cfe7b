//! Parses tokens into a tree, by precedence climbing.

use super::functions::CesqlFunction;
use super::lexer::{CesqlKeyword, CesqlLexer, CesqlSymbol, CesqlToken};
use super::pattern::LikePattern;
use super::{Arithmetic, CesqlNode, CesqlParseError, Compare, DEPTH_MAX, Logic};

/// Operator precedence; [`super`] explains this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Precedence {
    Anything,
    Logic,
    Comparison,
    Sum,
    Product,
    Test,
    Prefix,
}

/// An operator after an expression.
#[derive(Debug, Clone, Copy)]
enum Operator {
    Logic(Logic),
    Compare(Compare),
    Arithmetic(Arithmetic),
    Like,
    In,
    /// `NOT LIKE` or `NOT IN`.
    Not,
}

/// Characters of a token that an error shows.
const SHOWN_CHARS_MAX: usize = 40;

/// A tree and its depth.
type ParsedTree = (CesqlNode, usize);

pub(super) fn parse(text: &str) -> Result<CesqlNode, CesqlParseError> {
    let mut lexer = CesqlLexer::new(text);
    let (at, token) = lexer.next()?;
    let mut parser = CesqlParser { lexer, token, at, depth: 0 };
    let (root, _) = parser.expression(Precedence::Anything)?;
    match parser.token {
        CesqlToken::End => Ok(root),
        _ => Err(parser.unexpected("an operator or the end")),
    }
}

struct CesqlParser<'t> {
    lexer: CesqlLexer<'t>,
    /// The next token and where it begins.
    token: CesqlToken<'t>,
    at: usize,
    /// Nesting depth of the expressions being parsed.
    depth: usize,
}

impl<'t> CesqlParser<'t> {
    /// An expression of operators that bind tighter than `outer`.
    fn expression(&mut self, outer: Precedence) -> Result<ParsedTree, CesqlParseError> {
        self.depth += 1;
        self.check_depth(self.depth)?;
        let mut tree = self.operand()?;
        while let Some((operator, binding)) = self.operator() {
            if binding <= outer {
                break;
            }
            let at = self.at;
            tree = self.apply(operator, binding, tree)?;
            if tree.1 > DEPTH_MAX {
                return Err(self.lexer.error(at, too_deep()));
            }
        }
        self.depth -= 1;
        Ok(tree)
    }

    fn apply(
        &mut self,
        operator: Operator,
        binding: Precedence,
        (left, levels): ParsedTree,
    ) -> Result<ParsedTree, CesqlParseError> {
        self.advance()?;
        match operator {
            Operator::Logic(first) => self.logic(first, (left, levels)),
            Operator::Compare(operator) => {
                let (right, others) = self.expression(binding)?;
                Ok((CesqlNode::Compare(operator, Box::new([left, right])), 1 + levels.max(others)))
            }
            Operator::Arithmetic(operator) => {
                let (right, others) = self.expression(binding)?;
                Ok((CesqlNode::Arithmetic(operator, Box::new([left, right])), 1 + levels.max(others)))
            }
            Operator::Like => Ok((self.like(left)?, 1 + levels)),
            Operator::In => self.among((left, levels)),
            Operator::Not => {
                let (node, levels) = match self.token {
                    CesqlToken::Keyword(CesqlKeyword::Like) => {
                        self.advance()?;
                        (self.like(left)?, 1 + levels)
                    }
                    CesqlToken::Keyword(CesqlKeyword::In) => {
                        self.advance()?;
                        self.among((left, levels))?
                    }
                    _ => return Err(self.unexpected("LIKE or IN")),
                };
                Ok((CesqlNode::Not(Box::new(node)), 1 + levels))
            }
        }
    }

    /// The whole chain, kept flat.
    fn logic(&mut self, first: Logic, (left, mut levels): ParsedTree) -> Result<ParsedTree, CesqlParseError> {
        let mut rest = Vec::new();
        let mut next = first;
        loop {
            let (right, others) = self.expression(Precedence::Logic)?;
            levels = levels.max(others);
            rest.push((next, right));
            match self.operator() {
                Some((Operator::Logic(another), _)) => next = another,
                _ => return Ok((CesqlNode::Logic(Box::new(left), rest), 1 + levels)),
            }
            self.advance()?;
        }
    }

    fn like(&mut self, left: CesqlNode) -> Result<CesqlNode, CesqlParseError> {
        let CesqlToken::Text(pattern) = &self.token else {
            return Err(self.unexpected("a pattern in quotes"));
        };
        let pattern = LikePattern::new(pattern);
        self.advance()?;
        Ok(CesqlNode::Like(Box::new(left), pattern))
    }

    fn among(&mut self, (left, levels): ParsedTree) -> Result<ParsedTree, CesqlParseError> {
        self.expect(CesqlSymbol::Open, "\"(\"")?;
        let (members, others) = self.list()?;
        Ok((CesqlNode::In(Box::new(left), members), 1 + levels.max(others)))
    }

    /// At least one expression, and the closing parenthesis.
    fn list(&mut self) -> Result<(Vec<CesqlNode>, usize), CesqlParseError> {
        let (mut members, mut levels) = (Vec::new(), 0);
        loop {
            let (member, others) = self.expression(Precedence::Anything)?;
            levels = levels.max(others);
            members.push(member);
            match self.token {
                CesqlToken::Symbol(CesqlSymbol::Comma) => self.advance()?,
                CesqlToken::Symbol(CesqlSymbol::Close) => {
                    self.advance()?;
                    return Ok((members, levels));
                }
                _ => return Err(self.unexpected("\",\" or \")\"")),
            }
        }
    }

    fn operand(&mut self) -> Result<ParsedTree, CesqlParseError> {
        let at = self.at;
        match self.token.clone() {
            CesqlToken::Symbol(CesqlSymbol::Open) => {
                self.advance()?;
                let tree = self.expression(Precedence::Anything)?;
                self.expect(CesqlSymbol::Close, "an operator or \")\"")?;
                Ok(tree)
            }
            CesqlToken::Symbol(sign @ (CesqlSymbol::Minus | CesqlSymbol::Plus)) => {
                self.advance()?;
                self.signed(sign, at)
            }
            CesqlToken::Keyword(CesqlKeyword::Not) => {
                self.advance()?;
                let (operand, levels) = self.expression(Precedence::Prefix)?;
                Ok((CesqlNode::Not(Box::new(operand)), 1 + levels))
            }
            CesqlToken::Keyword(CesqlKeyword::Exists) => {
                self.advance()?;
                Ok((self.exists()?, 1))
            }
            CesqlToken::Keyword(yes @ (CesqlKeyword::True | CesqlKeyword::False)) => {
                self.advance()?;
                Ok((CesqlNode::Boolean(yes == CesqlKeyword::True), 1))
            }
            CesqlToken::Number(digits) => {
                self.advance()?;
                Ok((self.integer("", digits, at)?, 1))
            }
            CesqlToken::Text(text) => {
                self.advance()?;
                Ok((CesqlNode::Text(text.into()), 1))
            }
            CesqlToken::Name(name) => {
                self.advance()?;
                if self.token == CesqlToken::Symbol(CesqlSymbol::Open) {
                    return self.call(name, at);
                }
                Ok((CesqlNode::Attribute(self.attribute(name, at)?), 1))
            }
            _ => Err(self.unexpected("an attribute, a literal, a function or \"(\"")),
        }
    }

    /// After a sign. It becomes part of a number, because the smallest Integer has no positive counterpart.
    fn signed(&mut self, sign: CesqlSymbol, at: usize) -> Result<ParsedTree, CesqlParseError> {
        match (&self.token, sign) {
            (CesqlToken::Number(digits), _) => {
                let digits = *digits;
                self.advance()?;
                let sign = if sign == CesqlSymbol::Minus { "-" } else { "" };
                Ok((self.integer(sign, digits, at)?, 1))
            }
            (_, CesqlSymbol::Minus) => {
                let (operand, levels) = self.expression(Precedence::Prefix)?;
                Ok((CesqlNode::Minus(Box::new(operand)), 1 + levels))
            }
            _ => Err(self.unexpected("a number")),
        }
    }

    fn integer(&self, sign: &str, digits: &str, at: usize) -> Result<CesqlNode, CesqlParseError> {
        let number = format!("{sign}{digits}").parse();
        number.map(CesqlNode::Integer).map_err(|_| {
            self.lexer.error(at, "the number is outside -2147483648 to 2147483647, the range of an Integer")
        })
    }

    fn exists(&mut self) -> Result<CesqlNode, CesqlParseError> {
        let CesqlToken::Name(name) = self.token else { return Err(self.unexpected("an attribute")) };
        let name = self.attribute(name, self.at)?;
        self.advance()?;
        Ok(CesqlNode::Exists(name))
    }

    fn call(&mut self, name: &str, at: usize) -> Result<ParsedTree, CesqlParseError> {
        if !name.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'_') {
            return Err(self.lexer.error(at, format!("{name:?} cannot be the name of a function")));
        }
        self.advance()?;
        let (arguments, levels) = if self.token == CesqlToken::Symbol(CesqlSymbol::Close) {
            self.advance()?;
            (Vec::new(), 0)
        } else {
            self.list()?
        };
        let node = match CesqlFunction::find(name, arguments.len()) {
            Some(function) => CesqlNode::Call(function, arguments),
            None => CesqlNode::MissingFunction(name.into(), arguments.len()),
        };
        Ok((node, 1 + levels))
    }

    fn attribute(&self, name: &str, at: usize) -> Result<Box<str>, CesqlParseError> {
        if name.contains('_') {
            return Err(self.lexer.error(at, format!("{name:?} cannot be the name of an attribute")));
        }
        Ok(name.to_ascii_lowercase().into())
    }

    fn operator(&self) -> Option<(Operator, Precedence)> {
        Some(match self.token {
            CesqlToken::Keyword(CesqlKeyword::And) => (Operator::Logic(Logic::And), Precedence::Logic),
            CesqlToken::Keyword(CesqlKeyword::Or) => (Operator::Logic(Logic::Or), Precedence::Logic),
            CesqlToken::Keyword(CesqlKeyword::Xor) => (Operator::Logic(Logic::Xor), Precedence::Logic),
            CesqlToken::Keyword(CesqlKeyword::Like) => (Operator::Like, Precedence::Test),
            CesqlToken::Keyword(CesqlKeyword::In) => (Operator::In, Precedence::Test),
            CesqlToken::Keyword(CesqlKeyword::Not) => (Operator::Not, Precedence::Test),
            CesqlToken::Symbol(symbol) => match symbol {
                CesqlSymbol::Equal => (Operator::Compare(Compare::Equal), Precedence::Comparison),
                CesqlSymbol::NotEqual => (Operator::Compare(Compare::NotEqual), Precedence::Comparison),
                CesqlSymbol::Less => (Operator::Compare(Compare::Less), Precedence::Comparison),
                CesqlSymbol::LessOrEqual => (Operator::Compare(Compare::LessOrEqual), Precedence::Comparison),
                CesqlSymbol::Greater => (Operator::Compare(Compare::Greater), Precedence::Comparison),
                CesqlSymbol::GreaterOrEqual => (Operator::Compare(Compare::GreaterOrEqual), Precedence::Comparison),
                CesqlSymbol::Plus => (Operator::Arithmetic(Arithmetic::Add), Precedence::Sum),
                CesqlSymbol::Minus => (Operator::Arithmetic(Arithmetic::Subtract), Precedence::Sum),
                CesqlSymbol::Star => (Operator::Arithmetic(Arithmetic::Multiply), Precedence::Product),
                CesqlSymbol::Slash => (Operator::Arithmetic(Arithmetic::Divide), Precedence::Product),
                CesqlSymbol::Percent => (Operator::Arithmetic(Arithmetic::Modulo), Precedence::Product),
                CesqlSymbol::Open | CesqlSymbol::Close | CesqlSymbol::Comma => return None,
            },
            _ => return None,
        })
    }

    fn advance(&mut self) -> Result<(), CesqlParseError> {
        (self.at, self.token) = self.lexer.next()?;
        Ok(())
    }

    fn expect(&mut self, symbol: CesqlSymbol, what: &str) -> Result<(), CesqlParseError> {
        if self.token != CesqlToken::Symbol(symbol) {
            return Err(self.unexpected(what));
        }
        self.advance()
    }

    fn check_depth(&self, levels: usize) -> Result<(), CesqlParseError> {
        if levels > DEPTH_MAX { Err(self.lexer.error(self.at, too_deep())) } else { Ok(()) }
    }

    fn unexpected(&self, wanted: &str) -> CesqlParseError {
        let end = match self.token {
            CesqlToken::End => return self.lexer.error(self.at, format!("{wanted} is missing at the end")),
            _ => self.lexer.at(),
        };
        let found: String = self.lexer.slice(self.at..end).chars().take(SHOWN_CHARS_MAX).collect();
        self.lexer.error(self.at, format!("found {found:?} where {wanted} is expected"))
    }
}

fn too_deep() -> String {
    format!("the expression is nested more than {DEPTH_MAX} levels deep")
}
