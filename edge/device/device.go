package device

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/protocol/runnerv1"
)

// The fixed actions.
const (
	List   = "files.list"
	Read   = "files.read"
	Write  = "files.write"
	Digest = "files.digest" // internal: what the approval of a write binds
)

// Statuses of a result.
const (
	Succeeded = protocol.ResultSucceeded
	Failed    = protocol.ResultFailed
	Denied    = protocol.ResultDenied
	Unknown   = protocol.ResultUnknown
)

// Bounds that no request widens.
const (
	maxRead    = 4 << 20
	maxWrite   = 4 << 20
	maxEntries = 2000
	maxDigest  = 256 << 20
	// defaultOutput serves work that names no bound.
	defaultOutput = 256 << 10
)

// Folder is one tree that the owner opened.
type Folder struct {
	Name string
	Path string
	// Actions allowed in it: List, Read, Write.
	Actions []string
}

func (f Folder) allows(action string) bool {
	if action == Digest {
		action = Write
	}
	return slices.Contains(f.Actions, action)
}

// Device runs actions in folders.
type Device struct {
	folders []Folder
	// private directories are never reached.
	private []string
}

// New checks folders against the private directories of Bivouac itself.
func New(folders []Folder, private ...string) (*Device, error) {
	d := &Device{folders: slices.Clone(folders), private: private}
	slices.SortFunc(d.folders, func(a, b Folder) int { return strings.Compare(a.Name, b.Name) })
	for _, f := range d.folders {
		for _, p := range private {
			if within(f.Path, p) {
				return nil, protocol.Errorf(protocol.CodeInvalidArgument,
					"folder %q is %s, inside Bivouac's own directory %s: name another folder in edge.hcl", f.Name, f.Path, p)
			}
		}
	}
	return d, nil
}

// within compares real paths where they exist.
func within(path, dir string) bool {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator))
}

// Actions that some folder allows, sorted: what the runner advertises.
func (d *Device) Actions() []string {
	var out []string
	for _, a := range []string{Digest, List, Read, Write} {
		if slices.ContainsFunc(d.folders, func(f Folder) bool { return f.allows(a) }) {
			out = append(out, a)
		}
	}
	return out
}

// FolderOf is the folder in which work would be done, when it is allowed there;
// listing the folders themselves is done in none.
func (d *Device) FolderOf(w *runnerv1.DeviceWork) (Folder, error) {
	var args pathArguments
	if err := json.Unmarshal([]byte(w.GetArguments()), &args); err != nil {
		return Folder{}, protocol.Errorf(protocol.CodeInvalidArgument, "the arguments are not understood: %w", err)
	}
	if w.GetAction() == List && args.Path == "" {
		return Folder{}, nil
	}
	f, _, err := d.folder(w.GetAction(), args.Path)
	return f, err
}

// Do runs one action. permit is asked right before the effect, and its error
// means that the lease has no authority any more: nothing was done then. The
// result is never nil.
func (d *Device) Do(ctx context.Context, w *runnerv1.DeviceWork, permit func() error) *runnerv1.Result {
	if got := canonical.Digest([]byte(w.GetArguments())); w.GetArgumentsDigest() != "" && got != w.GetArgumentsDigest() {
		return refused(protocol.Errorf(protocol.CodePolicyDenied, "the arguments are not those that were decided on: their digest is %s, not %s", got, w.GetArgumentsDigest()))
	}
	limit := w.GetMaxOutputBytes()
	if limit <= 0 {
		limit = defaultOutput
	}
	if err := errors.Join(ctx.Err(), permit()); err != nil {
		return refused(err)
	}
	var out any
	var truncated bool
	var err error
	switch w.GetAction() {
	case List:
		out, truncated, err = d.list(w.GetArguments(), limit)
	case Read:
		out, truncated, err = d.read(w.GetArguments(), limit)
	case Write:
		out, err = d.write(w, permit)
	case Digest:
		out, err = d.digest(w.GetArguments())
	default:
		err = protocol.Errorf(protocol.CodeNotFound, "this machine knows no action %q", w.GetAction())
	}
	if err != nil {
		return refused(err)
	}
	return succeeded(out, truncated)
}

func succeeded(out any, truncated bool) *runnerv1.Result {
	text, err := canonical.Marshal(out)
	if err != nil {
		return refused(err)
	}
	return &runnerv1.Result{Status: Succeeded, Output: string(text), Truncated: truncated}
}

// refused keeps denials apart from failures. Text of the operating system may
// name paths of the machine, so only coded errors go out whole.
func refused(err error) *runnerv1.Result {
	r := &runnerv1.Result{Status: Failed, Code: string(protocol.CodeOf(err)), Message: err.Error()}
	switch protocol.CodeOf(err) {
	case protocol.CodePolicyDenied, protocol.CodePermissionDenied:
		r.Status = Denied
	case protocol.CodeOutcomeUnknown:
		r.Status = Unknown // INV-5
	case protocol.CodeInternal:
		r.Message = "the machine failed to do it: " + reason(err)
	}
	return r
}

// reason is the operating system's word without its path.
func reason(err error) string {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err.Error()
	}
	var le *os.LinkError
	if errors.As(err, &le) {
		return le.Err.Error()
	}
	return "internal error"
}
