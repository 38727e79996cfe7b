//! Tokens into a tree, by precedence climbing.

use super::functions::Function;
use super::lexer::{Keyword, Lexer, Symbol, Token};
use super::pattern::Pattern;
use super::{Arithmetic, Compare, DEPTH_MAX, Logic, Node, ParseError};

/// How tightly an operator binds; [`super`] says why in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Binding {
    Anything,
    Logic,
    Comparison,
    Sum,
    Product,
    Test,
    Prefix,
}

/// An operator behind an expression.
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

/// What an error shows of the token that it is about.
const SHOWN_CHARS_MAX: usize = 40;

/// A tree and the levels it has.
type Tree = (Node, usize);

pub(super) fn parse(text: &str) -> Result<Node, ParseError> {
    let mut lexer = Lexer::new(text);
    let (at, token) = lexer.next()?;
    let mut parser = Parser { lexer, token, at, depth: 0 };
    let (root, _) = parser.expression(Binding::Anything)?;
    match parser.token {
        Token::End => Ok(root),
        _ => Err(parser.unexpected("an operator or the end")),
    }
}

struct Parser<'t> {
    lexer: Lexer<'t>,
    /// The next token and where it begins.
    token: Token<'t>,
    at: usize,
    /// Expressions that are being read, one in the other.
    depth: usize,
}

impl<'t> Parser<'t> {
    /// An expression of operators that bind tighter than `outer`.
    fn expression(&mut self, outer: Binding) -> Result<Tree, ParseError> {
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
        binding: Binding,
        (left, levels): Tree,
    ) -> Result<Tree, ParseError> {
        self.advance()?;
        match operator {
            Operator::Logic(first) => self.logic(first, (left, levels)),
            Operator::Compare(operator) => {
                let (right, others) = self.expression(binding)?;
                Ok((Node::Compare(operator, Box::new([left, right])), 1 + levels.max(others)))
            }
            Operator::Arithmetic(operator) => {
                let (right, others) = self.expression(binding)?;
                Ok((Node::Arithmetic(operator, Box::new([left, right])), 1 + levels.max(others)))
            }
            Operator::Like => Ok((self.like(left)?, 1 + levels)),
            Operator::In => self.among((left, levels)),
            Operator::Not => {
                let (node, levels) = match self.token {
                    Token::Keyword(Keyword::Like) => {
                        self.advance()?;
                        (self.like(left)?, 1 + levels)
                    }
                    Token::Keyword(Keyword::In) => {
                        self.advance()?;
                        self.among((left, levels))?
                    }
                    _ => return Err(self.unexpected("LIKE or IN")),
                };
                Ok((Node::Not(Box::new(node)), 1 + levels))
            }
        }
    }

    /// The whole chain, kept flat.
    fn logic(&mut self, first: Logic, (left, mut levels): Tree) -> Result<Tree, ParseError> {
        let mut rest = Vec::new();
        let mut next = first;
        loop {
            let (right, others) = self.expression(Binding::Logic)?;
            levels = levels.max(others);
            rest.push((next, right));
            match self.operator() {
                Some((Operator::Logic(another), _)) => next = another,
                _ => return Ok((Node::Logic(Box::new(left), rest), 1 + levels)),
            }
            self.advance()?;
        }
    }

    fn like(&mut self, left: Node) -> Result<Node, ParseError> {
        let Token::Text(pattern) = &self.token else { return Err(self.unexpected("a pattern in quotes")) };
        let pattern = Pattern::new(pattern);
        self.advance()?;
        Ok(Node::Like(Box::new(left), pattern))
    }

    fn among(&mut self, (left, levels): Tree) -> Result<Tree, ParseError> {
        self.expect(Symbol::Open, "\"(\"")?;
        let (members, others) = self.list()?;
        Ok((Node::In(Box::new(left), members), 1 + levels.max(others)))
    }

    /// At least one expression, and the closing parenthesis.
    fn list(&mut self) -> Result<(Vec<Node>, usize), ParseError> {
        let (mut members, mut levels) = (Vec::new(), 0);
        loop {
            let (member, others) = self.expression(Binding::Anything)?;
            levels = levels.max(others);
            members.push(member);
            match self.token {
                Token::Symbol(Symbol::Comma) => self.advance()?,
                Token::Symbol(Symbol::Close) => {
                    self.advance()?;
                    return Ok((members, levels));
                }
                _ => return Err(self.unexpected("\",\" or \")\"")),
            }
        }
    }

    fn operand(&mut self) -> Result<Tree, ParseError> {
        let at = self.at;
        match self.token.clone() {
            Token::Symbol(Symbol::Open) => {
                self.advance()?;
                let tree = self.expression(Binding::Anything)?;
                self.expect(Symbol::Close, "an operator or \")\"")?;
                Ok(tree)
            }
            Token::Symbol(sign @ (Symbol::Minus | Symbol::Plus)) => {
                self.advance()?;
                self.signed(sign, at)
            }
            Token::Keyword(Keyword::Not) => {
                self.advance()?;
                let (operand, levels) = self.expression(Binding::Prefix)?;
                Ok((Node::Not(Box::new(operand)), 1 + levels))
            }
            Token::Keyword(Keyword::Exists) => {
                self.advance()?;
                Ok((self.exists()?, 1))
            }
            Token::Keyword(yes @ (Keyword::True | Keyword::False)) => {
                self.advance()?;
                Ok((Node::Boolean(yes == Keyword::True), 1))
            }
            Token::Number(digits) => {
                self.advance()?;
                Ok((self.integer("", digits, at)?, 1))
            }
            Token::Text(text) => {
                self.advance()?;
                Ok((Node::Text(text.into()), 1))
            }
            Token::Name(name) => {
                self.advance()?;
                if self.token == Token::Symbol(Symbol::Open) {
                    return self.call(name, at);
                }
                Ok((Node::Attribute(self.attribute(name, at)?), 1))
            }
            _ => Err(self.unexpected("an attribute, a literal, a function or \"(\"")),
        }
    }

    /// Behind a sign. A number takes it in, because the smallest Integer has no positive counterpart.
    fn signed(&mut self, sign: Symbol, at: usize) -> Result<Tree, ParseError> {
        match (&self.token, sign) {
            (Token::Number(digits), _) => {
                let digits = *digits;
                self.advance()?;
                let sign = if sign == Symbol::Minus { "-" } else { "" };
                Ok((self.integer(sign, digits, at)?, 1))
            }
            (_, Symbol::Minus) => {
                let (operand, levels) = self.expression(Binding::Prefix)?;
                Ok((Node::Minus(Box::new(operand)), 1 + levels))
            }
            _ => Err(self.unexpected("a number")),
        }
    }

    fn integer(&self, sign: &str, digits: &str, at: usize) -> Result<Node, ParseError> {
        let number = format!("{sign}{digits}").parse();
        number.map(Node::Integer).map_err(|_| {
            self.lexer.error(at, "the number is outside -2147483648 to 2147483647, the range of an Integer")
        })
    }

    fn exists(&mut self) -> Result<Node, ParseError> {
        let Token::Name(name) = self.token else { return Err(self.unexpected("an attribute")) };
        let name = self.attribute(name, self.at)?;
        self.advance()?;
        Ok(Node::Exists(name))
    }

    fn call(&mut self, name: &str, at: usize) -> Result<Tree, ParseError> {
        if !name.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'_') {
            return Err(self.lexer.error(at, format!("{name:?} cannot be the name of a function")));
        }
        self.advance()?;
        let (arguments, levels) = if self.token == Token::Symbol(Symbol::Close) {
            self.advance()?;
            (Vec::new(), 0)
        } else {
            self.list()?
        };
        let node = match Function::find(name, arguments.len()) {
            Some(function) => Node::Call(function, arguments),
            None => Node::MissingFunction(name.into(), arguments.len()),
        };
        Ok((node, 1 + levels))
    }

    fn attribute(&self, name: &str, at: usize) -> Result<Box<str>, ParseError> {
        if name.contains('_') {
            return Err(self.lexer.error(at, format!("{name:?} cannot be the name of an attribute")));
        }
        Ok(name.to_ascii_lowercase().into())
    }

    fn operator(&self) -> Option<(Operator, Binding)> {
        Some(match self.token {
            Token::Keyword(Keyword::And) => (Operator::Logic(Logic::And), Binding::Logic),
            Token::Keyword(Keyword::Or) => (Operator::Logic(Logic::Or), Binding::Logic),
            Token::Keyword(Keyword::Xor) => (Operator::Logic(Logic::Xor), Binding::Logic),
            Token::Keyword(Keyword::Like) => (Operator::Like, Binding::Test),
            Token::Keyword(Keyword::In) => (Operator::In, Binding::Test),
            Token::Keyword(Keyword::Not) => (Operator::Not, Binding::Test),
            Token::Symbol(symbol) => match symbol {
                Symbol::Equal => (Operator::Compare(Compare::Equal), Binding::Comparison),
                Symbol::NotEqual => (Operator::Compare(Compare::NotEqual), Binding::Comparison),
                Symbol::Less => (Operator::Compare(Compare::Less), Binding::Comparison),
                Symbol::LessOrEqual => (Operator::Compare(Compare::LessOrEqual), Binding::Comparison),
                Symbol::Greater => (Operator::Compare(Compare::Greater), Binding::Comparison),
                Symbol::GreaterOrEqual => (Operator::Compare(Compare::GreaterOrEqual), Binding::Comparison),
                Symbol::Plus => (Operator::Arithmetic(Arithmetic::Add), Binding::Sum),
                Symbol::Minus => (Operator::Arithmetic(Arithmetic::Subtract), Binding::Sum),
                Symbol::Star => (Operator::Arithmetic(Arithmetic::Multiply), Binding::Product),
                Symbol::Slash => (Operator::Arithmetic(Arithmetic::Divide), Binding::Product),
                Symbol::Percent => (Operator::Arithmetic(Arithmetic::Modulo), Binding::Product),
                Symbol::Open | Symbol::Close | Symbol::Comma => return None,
            },
            _ => return None,
        })
    }

    fn advance(&mut self) -> Result<(), ParseError> {
        (self.at, self.token) = self.lexer.next()?;
        Ok(())
    }

    fn expect(&mut self, symbol: Symbol, what: &str) -> Result<(), ParseError> {
        if self.token != Token::Symbol(symbol) {
            return Err(self.unexpected(what));
        }
        self.advance()
    }

    fn check_depth(&self, levels: usize) -> Result<(), ParseError> {
        if levels > DEPTH_MAX { Err(self.lexer.error(self.at, too_deep())) } else { Ok(()) }
    }

    fn unexpected(&self, wanted: &str) -> ParseError {
        let end = match self.token {
            Token::End => return self.lexer.error(self.at, format!("{wanted} is missing at the end")),
            _ => self.lexer.at(),
        };
        let found: String = self.lexer.slice(self.at..end).chars().take(SHOWN_CHARS_MAX).collect();
        self.lexer.error(self.at, format!("{found:?} stands where {wanted} is expected"))
    }
}

fn too_deep() -> String {
    format!("the expression is nested more than {DEPTH_MAX} levels deep")
}
