package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/config"
	check "github.com/lofamo/lofamo/internal/preflight"
)

// preflight makes the checks of a start that need no answer of a supervisor. A node that enrols makes them first, because a refusal after
// the enrolment would have spent a use of the token, and the node's name.
func preflight(cfg config.Agent) error {
	if err := checkRoom(cfg); err != nil {
		return err
	}
	return half.MakeStateDir(cfg.StateDir)
}

// used reports whether halves have run with this state directory.
func used(stateDir string) bool {
	_, err := os.Stat(filepath.Join(stateDir, half.RegisterFile))
	return err == nil
}

// checkPorts refuses addresses of a new node on which another program listens. Earlier halves of a node may still run.
func checkPorts(cfg config.Agent) error {
	if used(cfg.StateDir) {
		return nil
	}
	return check.Ports(cfg)
}

// checkRoom refuses a new state directory on a disk without room for its files. A state directory that has its files
// works on a full disk too.
func checkRoom(cfg config.Agent) error {
	if used(cfg.StateDir) {
		return nil
	}
	return check.Room(cfg)
}

// errGone says that the state directory was deleted or replaced: the daemon's locks and sockets lead nowhere, and the
// halves share unlinked files. The halves have been stopped.
var errGone = errors.New("state directory deleted or replaced")

// stateDirEvery is the interval between two looks whether the state directory is still there.
const stateDirEvery = time.Second

// watchStateDir returns errGone when the file of the daemon's lock is no longer at its path, and nil when ctx ends.
func (d *daemon) watchStateDir(ctx context.Context) error {
	own, err := d.locked.Stat()
	if err != nil {
		return fmt.Errorf("lock of lofamo-agent run: %w", err)
	}
	t := time.NewTicker(stateDirEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		now, err := os.Stat(d.locked.Name())
		if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(own, now) {
			return errGone
		}
	}
}
