//go:build !bug_any_digest

package secondkey

// plantedAnyDigest is a bug that the build tag bug_any_digest plants: the owner's
// decision counts whatever was shown. Tests prove that they find it.
const plantedAnyDigest = false
