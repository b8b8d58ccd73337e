package device

import (
	"io/fs"
	"os"

	"bivouac/edge/protocol"
)

// open opens the regular file at p for reading. A pipe or device node is refused
// before it is opened, and again by what was opened; the open does not block.
func (p *place) open(asked string) (*os.File, fs.FileInfo, error) {
	if err := regular(p.info, asked); err != nil {
		return nil, nil, err
	}
	f, err := p.dir.OpenFile(p.name, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return nil, nil, (&walk{asked: asked}).wrong(err)
	}
	info, err := f.Stat()
	if err == nil {
		err = regular(info, asked)
	}
	if err == nil && !os.SameFile(info, p.info) {
		err = protocol.Errorf(protocol.CodeConflict, "%q changed while it was opened; try again", asked)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

func regular(info fs.FileInfo, asked string) error {
	switch {
	case info == nil:
		return protocol.Errorf(protocol.CodeNotFound, "%q does not exist", asked)
	case info.IsDir():
		return protocol.Errorf(protocol.CodeFailedPrecondition, "%q is a folder: use %s", asked, List)
	case !info.Mode().IsRegular():
		return protocol.Errorf(protocol.CodePermissionDenied, "%q is not a regular file", asked)
	}
	return nil
}
