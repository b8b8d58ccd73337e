package workspace

// Windows has no such flags; os.Root keeps a link that leaves the folder from
// being followed, and what was opened is checked to be a regular file.
const (
	openNoFollow  = 0
	openNonBlock  = 0
	openDirectory = 0
)
