package workspace

import (
	"path"
	"strings"

	"bivouac/edge/protocol"
)

// protectedNames are never packed, staged, patched or applied, at any depth.
var protectedNames = []string{".git", ".bivouac"}

// Protected reports whether a name has a part that belongs to git or to Bivouac.
// Case is folded, and the spellings that HFS+ and NTFS take for the same name
// are included, because a patch made on Linux may be applied elsewhere.
func Protected(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		folded := strings.ToLower(strings.Map(dropIgnorable, part))
		folded = strings.TrimRight(folded, " .")
		if stream, _, found := strings.Cut(folded, ":"); found {
			folded = stream
		}
		for _, p := range protectedNames {
			if folded == p {
				return true
			}
		}
		if folded == "git~1" || folded == "bivoua~1" {
			return true
		}
	}
	return false
}

// dropIgnorable drops the code points that HFS+ ignores in names.
func dropIgnorable(r rune) rune {
	switch {
	case r >= 0x200c && r <= 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x206a && r <= 0x206f, r == 0xfeff:
		return -1
	}
	return r
}

// checkName accepts a relative, clean, unprotected name.
func checkName(name string) error {
	switch {
	case name == "" || name == "." || path.IsAbs(name) || path.Clean(name) != name || name == ".." || strings.HasPrefix(name, "../"):
		return protocol.Errorf(protocol.CodeInvalidArgument, "the name %q does not stay inside the workspace", name)
	case strings.ContainsRune(name, 0):
		return protocol.Errorf(protocol.CodeInvalidArgument, "the name %q contains a zero byte", name)
	case Protected(name):
		return protocol.Errorf(protocol.CodePolicyDenied, "the name %q is protected: .git and .bivouac are never carried", name)
	}
	return nil
}

// checkLink accepts a symbolic link that can only lead to unprotected names of
// the workspace. A ".." may stand at the front alone: behind another link it
// would leave although the text of the path stays inside.
func checkLink(name, target string) error {
	leaves := protocol.Errorf(protocol.CodePolicyDenied,
		"the link %q points to %q, which is outside of the workspace: remove it, replace it by a copy, or add it to .gitignore", name, target)
	if target == "" || path.IsAbs(target) || strings.ContainsRune(target, 0) {
		return leaves
	}
	depth := strings.Count(name, "/")
	plain := false
	for part := range strings.SplitSeq(target, "/") {
		switch part {
		case "", ".":
		case "..":
			if depth--; plain || depth < 0 {
				return leaves
			}
		default:
			plain = true
		}
	}
	if Protected(target) {
		return protocol.Errorf(protocol.CodePolicyDenied, "the link %q points to %q, which is protected", name, target)
	}
	return nil
}
