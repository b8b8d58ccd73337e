package finding

import "golang.org/x/sys/windows"

func free(path string) (left, whole uint64, err error) {
	p, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return 0, 0, err
	}
	err = windows.GetDiskFreeSpaceEx(p, &left, &whole, nil)
	return left, whole, err
}
