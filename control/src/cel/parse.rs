//! Words become a tree. What a rule may call and speak of is checked here, once.

use super::call::{is_function, is_method};
use super::token::{self, Token};
use super::value::Val;
use super::{DEPTH_MAX, NESTING_MAX};

/// A part of a rule.
#[derive(Debug)]
pub(super) enum Expr {
    Literal(Val),
    Name(String),
    /// `of.field`; `optional`: of what may not be there.
    Field {
        of: Box<Expr>,
        field: String,
        optional: bool,
    },
    /// `has(of.field)`
    Has {
        of: Box<Expr>,
        field: String,
    },
    Index {
        of: Box<Expr>,
        index: Box<Expr>,
        optional: bool,
    },
    Not(Box<Expr>),
    Minus(Box<Expr>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    Choose(Box<Expr>, Box<Expr>, Box<Expr>),
    Binary(&'static str, Box<Expr>, Box<Expr>),
    Call {
        name: String,
        of: Option<Box<Expr>>,
        given: Vec<Expr>,
    },
    List(Vec<Expr>),
    Map(Vec<(Expr, Expr)>),
    /// Goes through `of`, calling each `name`.
    Each {
        how: Each,
        of: Box<Expr>,
        name: String,
        test: Box<Expr>,
        then: Option<Box<Expr>>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Each {
    All,
    Exists,
    ExistsOne,
    Filter,
    Map,
}

/// Names of types, which are values too.
const TYPES: [&str; 10] =
    ["bool", "bytes", "double", "int", "list", "map", "null_type", "string", "type", "uint"];
/// Operators of two, by how closely they bind; `&&`, `||` and `?` are apart.
const LEVELS: [&[&str]; 3] = [&["==", "!=", "<", "<=", ">", ">=", "in"], &["+", "-"], &["*", "/", "%"]];

struct Parser<'a> {
    tokens: Vec<(Token, usize)>,
    at: usize,
    names: &'a [&'a str],
    /// Names that `all` and its like gave, innermost last.
    bound: Vec<String>,
    nesting: usize,
    /// Links of the chains that the place being read hangs from.
    links: usize,
    compares: bool,
}

/// The tree of `rule`, and whether it speaks of what was there before.
pub(super) fn read(rule: &str, names: &[&str]) -> Result<(Expr, bool), String> {
    let tokens = token::cut(rule)?;
    let mut parser =
        Parser { tokens, at: 0, names, bound: Vec::new(), nesting: 0, links: 0, compares: false };
    let root = parser.whole()?;
    if parser.at < parser.tokens.len() {
        return Err(parser.unexpected("the end"));
    }
    if depth(&root) > DEPTH_MAX {
        return Err(format!("a rule is at most {DEPTH_MAX} levels deep"));
    }
    Ok((root, parser.compares))
}

/// Its own depth is a few times [`DEPTH_MAX`] at most, which [`Parser::chain`] sees to.
fn depth(expr: &Expr) -> usize {
    let deepest = |all: &[Expr]| all.iter().map(depth).max().unwrap_or(0);
    1 + match expr {
        Expr::Literal(_) | Expr::Name(_) => 0,
        Expr::Field { of, .. } | Expr::Has { of, .. } | Expr::Not(of) | Expr::Minus(of) => depth(of),
        Expr::Index { of, index, .. } => depth(of).max(depth(index)),
        Expr::And(all) | Expr::Or(all) | Expr::List(all) => deepest(all),
        Expr::Choose(one, two, three) => depth(one).max(depth(two)).max(depth(three)),
        Expr::Binary(_, one, two) => depth(one).max(depth(two)),
        Expr::Call { of, given, .. } => deepest(given).max(of.as_deref().map_or(0, depth)),
        Expr::Map(pairs) => pairs.iter().map(|(key, value)| depth(key).max(depth(value))).max().unwrap_or(0),
        Expr::Each { of, test, then, .. } => depth(of).max(depth(test)).max(then.as_deref().map_or(0, depth)),
    }
}

impl Parser<'_> {
    fn unexpected(&self, wanted: &str) -> String {
        match self.tokens.get(self.at) {
            Some((token, at)) => format!("found {token:?} at {at}, expected {wanted}"),
            None => format!("found the end, expected {wanted}"),
        }
    }

    fn eat(&mut self, mark: &str) -> bool {
        let found = matches!(self.tokens.get(self.at), Some((Token::Mark(found), _)) if *found == mark);
        self.at += usize::from(found);
        found
    }

    fn need(&mut self, mark: &str) -> Result<(), String> {
        if self.eat(mark) { Ok(()) } else { Err(self.unexpected(&format!("{mark:?}"))) }
    }

    fn name(&mut self) -> Result<String, String> {
        match self.tokens.get(self.at) {
            Some((Token::Name(name), _)) => {
                self.at += 1;
                Ok(name.clone())
            }
            _ => Err(self.unexpected("a name")),
        }
    }

    /// Counts the links of a chain: each becomes a level of the tree.
    fn chain(&mut self) -> Result<(), String> {
        self.links += 1;
        if self.links > DEPTH_MAX {
            Err(format!("a rule is at most {DEPTH_MAX} levels deep"))
        } else {
            Ok(())
        }
    }

    fn whole(&mut self) -> Result<Expr, String> {
        self.nesting += 1;
        if self.nesting > NESTING_MAX {
            return Err(format!("a rule has at most {NESTING_MAX} levels of brackets"));
        }
        let test = self.either()?;
        let found = if self.eat("?") {
            let one = self.either()?;
            self.need(":")?;
            Expr::Choose(Box::new(test), Box::new(one), Box::new(self.whole()?))
        } else {
            test
        };
        self.nesting -= 1;
        Ok(found)
    }

    fn either(&mut self) -> Result<Expr, String> {
        let mut all = vec![self.both()?];
        while self.eat("||") {
            all.push(self.both()?);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Expr::Or(all) })
    }

    fn both(&mut self) -> Result<Expr, String> {
        let mut all = vec![self.binary(0)?];
        while self.eat("&&") {
            all.push(self.binary(0)?);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Expr::And(all) })
    }

    fn binary(&mut self, level: usize) -> Result<Expr, String> {
        let Some(operators) = LEVELS.get(level) else { return self.unary() };
        let mut left = self.binary(level + 1)?;
        let outside = self.links;
        while let Some(operator) = self.operator(operators) {
            self.chain()?;
            let right = self.binary(level + 1)?;
            left = Expr::Binary(operator, Box::new(left), Box::new(right));
        }
        self.links = outside;
        Ok(left)
    }

    fn operator(&mut self, among: &[&'static str]) -> Option<&'static str> {
        let found = match &self.tokens.get(self.at)?.0 {
            Token::Mark(mark) => *mark,
            Token::Name(name) if name == "in" => "in",
            _ => return None,
        };
        let found = among.iter().find(|one| **one == found)?;
        self.at += 1;
        Some(found)
    }

    fn unary(&mut self) -> Result<Expr, String> {
        let (mut nots, mut minuses) = (0, 0);
        while self.eat("!") {
            nots += 1;
        }
        while nots == 0 && self.eat("-") {
            minuses += 1;
        }
        if minuses % 2 == 1 && matches!(self.tokens.get(self.at), Some((Token::IntMin, _))) {
            self.at += 1;
            return self.links(Expr::Literal(Val::Int(i64::MIN)));
        }
        let first = self.primary()?;
        let mut found = self.links(first)?;
        if nots % 2 == 1 {
            found = Expr::Not(Box::new(found));
        } else if nots > 0 {
            found = Expr::Not(Box::new(Expr::Not(Box::new(found))));
        }
        Ok(if minuses % 2 == 1 { Expr::Minus(Box::new(found)) } else { found })
    }

    /// What stands behind a value: fields, calls, places.
    fn links(&mut self, mut found: Expr) -> Result<Expr, String> {
        let outside = self.links;
        loop {
            self.chain()?;
            let of = |found: Expr| Box::new(found);
            if self.eat(".") {
                let name = self.name()?;
                found = if self.eat("(") {
                    self.method(of(found), name)?
                } else {
                    Expr::Field { of: of(found), field: unescaped(&name), optional: false }
                };
            } else if self.eat(".?") {
                let field = unescaped(&self.name()?);
                found = Expr::Field { of: of(found), field, optional: true };
            } else if self.eat("[?") {
                let index = Box::new(self.whole()?);
                self.need("]")?;
                found = Expr::Index { of: of(found), index, optional: true };
            } else if self.eat("[") {
                let index = Box::new(self.whole()?);
                self.need("]")?;
                found = Expr::Index { of: of(found), index, optional: false };
            } else {
                self.links = outside;
                return Ok(found);
            }
        }
    }

    fn method(&mut self, of: Box<Expr>, name: String) -> Result<Expr, String> {
        let how = match name.as_str() {
            "all" => Some(Each::All),
            "exists" => Some(Each::Exists),
            "exists_one" | "existsOne" => Some(Each::ExistsOne),
            "filter" => Some(Each::Filter),
            "map" => Some(Each::Map),
            _ => None,
        };
        if let Some(how) = how {
            let name = self.name()?;
            self.need(",")?;
            self.bound.push(name.clone());
            let test = Box::new(self.whole()?);
            let then = if how == Each::Map && self.eat(",") { Some(Box::new(self.whole()?)) } else { None };
            self.bound.pop();
            self.need(")")?;
            return Ok(Expr::Each { how, of, name, test, then });
        }
        let given = self.list(")")?;
        if let Expr::Name(space) = &*of
            && space == "optional"
        {
            let name = format!("optional.{name}");
            return Self::function(name, given);
        }
        if !is_method(&name, given.len()) {
            return Err(format!("undeclared reference to {name:?} with {} arguments", given.len()));
        }
        Ok(Expr::Call { name, of: Some(of), given })
    }

    fn function(name: String, given: Vec<Expr>) -> Result<Expr, String> {
        if !is_function(&name, given.len()) {
            return Err(format!("undeclared reference to {name:?} with {} arguments", given.len()));
        }
        Ok(Expr::Call { name, of: None, given })
    }

    /// Parts with commas between them, up to `end`.
    fn list(&mut self, end: &str) -> Result<Vec<Expr>, String> {
        let mut found = Vec::new();
        while !self.eat(end) {
            found.push(self.whole()?);
            if !self.eat(",") {
                self.need(end)?;
                break;
            }
        }
        Ok(found)
    }

    fn primary(&mut self) -> Result<Expr, String> {
        if self.eat("(") {
            let inner = self.whole()?;
            self.need(")")?;
            return Ok(inner);
        }
        if self.eat("[") {
            return Ok(Expr::List(self.list("]")?));
        }
        if self.eat("{") {
            return self.map();
        }
        let Some((token, _)) = self.tokens.get(self.at).cloned() else {
            return Err(self.unexpected("a value"));
        };
        let literal = match token {
            Token::Int(number) => Val::Int(number),
            Token::Uint(number) => Val::Uint(number),
            Token::Double(number) => Val::Double(number),
            Token::Text(text) => Val::Text(text.into()),
            Token::Bytes(bytes) => Val::Bytes(bytes.into()),
            Token::Name(name) => {
                self.at += 1;
                return self.named(name);
            }
            Token::Mark(_) | Token::IntMin => return Err(self.unexpected("a value")),
        };
        self.at += 1;
        Ok(Expr::Literal(literal))
    }

    fn map(&mut self) -> Result<Expr, String> {
        let mut pairs = Vec::new();
        while !self.eat("}") {
            let key = self.whole()?;
            self.need(":")?;
            pairs.push((key, self.whole()?));
            if !self.eat(",") {
                self.need("}")?;
                break;
            }
        }
        Ok(Expr::Map(pairs))
    }

    fn named(&mut self, name: String) -> Result<Expr, String> {
        match name.as_str() {
            "true" | "false" => return Ok(Expr::Literal(Val::Bool(name == "true"))),
            "null" => return Ok(Expr::Literal(Val::Null)),
            _ => {}
        }
        if self.eat("(") {
            if name == "has" {
                let inner = self.whole()?;
                self.need(")")?;
                let Expr::Field { of, field, .. } = inner else {
                    return Err("has() takes a field, as in has(self.name)".into());
                };
                return Ok(Expr::Has { of, field });
            }
            let given = self.list(")")?;
            return Self::function(name, given);
        }
        let known = self.bound.contains(&name) || self.names.contains(&name.as_str());
        if let Some(known) = TYPES.iter().find(|one| **one == name).filter(|_| !known) {
            return Ok(Expr::Literal(Val::Type(known)));
        }
        let space = name == "optional" && matches!(self.tokens.get(self.at), Some((Token::Mark("."), _)));
        if !known && !space {
            return Err(format!("undeclared reference to {name:?}"));
        }
        self.compares |= name == "oldSelf" && !self.bound.contains(&name);
        Ok(Expr::Name(name))
    }
}

/// A field's own name: what CEL has no words for is written with underscores.
fn unescaped(name: &str) -> String {
    if !name.contains("__") {
        return name.to_owned();
    }
    let mut found = String::new();
    let mut rest = name;
    while let Some(start) = rest.find("__") {
        found.push_str(&rest[..start]);
        let inner = &rest[start + 2..];
        let known = [("underscores__", "__"), ("dot__", "."), ("dash__", "-"), ("slash__", "/")];
        if let Some((written, meant)) = known.iter().find(|(written, _)| inner.starts_with(written)) {
            found.push_str(meant);
            rest = &inner[written.len()..];
        } else if let Some(word) = inner.strip_suffix("__").filter(|_| found.is_empty()) {
            // A word that CEL keeps for itself: `__namespace__`.
            return word.to_owned();
        } else {
            found.push_str("__");
            rest = inner;
        }
    }
    found + rest
}
