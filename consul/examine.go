package consul

import (
	"errors"
	"io/fs"
	"os"
)

// Examine reads the entries of a directory anew, for a doctor: how many there
// are, and what is wrong with those that allow nothing because of an error.
func Examine(path string) (entries int, problems []string, err error) {
	names, err := (&Directory{path: path}).files()
	if err != nil {
		return 0, nil, err
	}
	for _, name := range names {
		src, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it went between listing and reading
		}
		if err == nil {
			_, err = Parse(src, name)
		}
		if err != nil {
			problems = append(problems, err.Error())
			continue
		}
		entries++
	}
	return entries, problems, nil
}
