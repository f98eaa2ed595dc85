package regfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/fault"
)

// takeLock takes the lock of one half, or says who holds it. The lock is flock's, so that it ends
// with the process however that ends; the file beside it stays, since removing it would let two
// processes lock two different files of the same name.
func takeLock(path string, half fault.Half) (*os.File, error) {
	name := path + "." + half.String()
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("the %s half is served by %s already: %w", half, holder(file), ErrInUse)
		}
		return nil, errors.Join(fmt.Errorf("lock %s: %w", name, err), file.Close())
	}
	// The process id is there for people only; a lock without it is as good.
	if file.Truncate(0) == nil {
		_, _ = file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return file, nil
}

func holder(file *os.File) string {
	b, err := io.ReadAll(io.LimitReader(file, 20))
	pid, perr := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || perr != nil {
		return "another process"
	}
	return fmt.Sprintf("process %d", pid)
}
