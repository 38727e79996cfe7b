//! Bearer tokens from a file, in Kubernetes' format: `token,user,uid,"group1,group2"`, one a line.

use std::collections::HashMap;
use std::path::Path;

use super::{AUTHENTICATED, UserInfo};
use support::bounded_file;

/// Some ten thousand tokens; a wrong path (a disk image, a log) must not be read whole.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Tokens and whose they are.
#[derive(Debug, Clone, Default)]
pub struct StaticTokens {
    users: HashMap<String, UserInfo>,
}

impl StaticTokens {
    /// # Errors
    /// The file cannot be read, or a line of it is no entry: both are named.
    pub fn read(path: &Path) -> Result<Self, String> {
        let named = |why: String| format!("{}: {why}", path.display());
        let text = bounded_file::read_text(path, FILE_BYTES_MAX).map_err(|why| named(why.to_string()))?;
        let text = text.ok_or_else(|| named(format!("more than {FILE_BYTES_MAX} bytes")))?;
        Self::parse(&text).map_err(named)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut users = HashMap::new();
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = || format!("line {}: token,user,uid[,\"group,…\"] is needed", index + 1);
            let mut fields = line.splitn(4, ',').map(str::trim);
            let (token, name) = (fields.next().unwrap_or(""), fields.next().unwrap_or(""));
            let uid = fields.next().ok_or_else(wrong)?.to_owned();
            if token.is_empty() || name.is_empty() {
                return Err(wrong());
            }
            let groups = fields.next().unwrap_or("").trim_matches('"').split(',');
            let named = groups.map(str::trim).filter(|group| !group.is_empty()).map(str::to_owned);
            let groups = named.chain([AUTHENTICATED.to_owned()]).collect();
            let user = UserInfo { name: name.into(), groups, uid, ..UserInfo::default() };
            users.insert(token.to_owned(), user);
        }
        Ok(Self { users })
    }

    /// The user of the token.
    #[must_use]
    pub fn user(&self, token: &str) -> Option<&UserInfo> {
        self.users.get(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_token_with_its_user_and_groups() {
        let tokens = StaticTokens::parse("# ours\nabc,alice,1,\"crew, night\"\n\ndef,bob,2\n").unwrap();
        let alice = tokens.user("abc").unwrap();
        assert_eq!((alice.name.as_str(), alice.uid.as_str(), alice.groups.len()), ("alice", "1", 3));
        assert_eq!(tokens.user("def").unwrap().groups, [AUTHENTICATED]);
        assert!(tokens.user("").is_none() && tokens.user("ab").is_none());
    }

    #[test]
    fn a_line_that_is_none_is_named() {
        for bad in ["a,b,c\nonly-a-token\n", "x\n,bob,1\n", "x,y\n"] {
            assert!(StaticTokens::parse(bad).unwrap_err().starts_with("line "), "{bad}");
        }
    }
}
