package device

import (
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
)

// Inspect finds out, after a crash between intent and result, what became of an
// action, and removes what it left behind. It never repeats the effect: a write
// that is seen to have happened succeeded, one that is seen not to have happened
// failed, and anything else is unknown (INV-5).
func (d *Device) Inspect(w *runnerv1.DeviceWork) *runnerv1.Result {
	if w.GetAction() != Write {
		return refused(protocol.Errorf(protocol.CodeUnavailable, "%s was interrupted by a restart of the runner; it changed nothing", w.GetAction()))
	}
	var args writeArguments
	if err := arguments(w.GetArguments(), &args); err != nil {
		return refused(err)
	}
	unknown := func(why string) *runnerv1.Result {
		return refused(protocol.Errorf(protocol.CodeOutcomeUnknown, "the runner stopped during %s, and %s: look at %q", Write, why, args.Path))
	}
	p, err := d.locate(Write, args.Path)
	if err != nil {
		return unknown("the file cannot be looked at now")
	}
	defer p.close()
	_ = p.dir.Remove(tempName(w)) // most often not there
	now, _, err := p.digest(args.Path)
	wanted := digestOf([]byte(args.Content))
	switch {
	case err != nil:
		return unknown("the file cannot be read now")
	case p.exists() && sameDigest(now, wanted):
		if err := p.syncDir(); err != nil {
			return refused(err)
		}
		return succeeded(written{Size: int64(len(args.Content)), Digest: wanted}, false)
	case sameDigest(now, w.GetPreImageDigest()):
		return refused(protocol.Errorf(protocol.CodeUnavailable, "%s was interrupted by a restart of the runner before it changed %q", Write, args.Path))
	}
	return unknown("the file is neither the old nor the new one")
}
