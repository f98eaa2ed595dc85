package process

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/fault"
)

// powerExecutor resets nodes through their BMCs: by Redfish, or by IPMI if Redfish is not available.
//
// A reset can be neither rechecked nor undone. So the executor requests it once, with a single request that is never
// repeated, and any answer that is not plain gives an unknown outcome. The answer of a BMC is reported but proves
// nothing. Neighbours see that the node went down, because its links fall, and its next boot epoch shows that it came
// back.
type powerExecutor struct {
	nodes map[fault.NodeID]*resetPlace
}

// resetPlace is a BMC with a lock for its only user.
type resetPlace struct {
	BMC
	busy sync.Mutex
}

// newPower checks the configuration and its files. It does not contact a BMC.
func newPower(cfg PowerConfig) (*powerExecutor, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	nodes, err := executor.BuildAll(maps.All(cfg.Nodes), func(_ fault.NodeID, b BMC) (*resetPlace, error) {
		b = b.filled()
		_, err := b.password()
		_, err2 := b.authorities()
		return &resetPlace{BMC: b}, errors.Join(err, err2)
	})
	if err != nil {
		return nil, err
	}
	return &powerExecutor{nodes}, nil
}

// Do implements executor.Executor.
func (x *powerExecutor) Do(ctx context.Context, j executor.Job) executor.Result {
	if r, ok := executor.Blind(j, "a reset", "the next boot epoch says it, or a person"); !ok {
		return r
	}
	if j.Target.Group != "" {
		return executor.Unchanged("group %s: want a node", j.Target.Group)
	}
	p, ok := x.nodes[j.Target.Node]
	if !ok {
		return executor.Unchanged("node %s may not be reset: the configuration has no BMC for it", j.Target.Node)
	}
	if m := j.Parameters["method"]; m != p.Method {
		return executor.Unchanged("method: given %q: want that of the node's BMC, %q", m, p.Method)
	}
	password, err := p.password()
	if err != nil {
		return executor.Unchanged("%s", err)
	}
	if !p.busy.TryLock() {
		return executor.Unchanged("another reset of %s is under way", j.Target.Node)
	}
	defer p.busy.Unlock()
	if p.Method == methodIPMI {
		return p.ipmi(ctx, password)
	}
	return p.redfish(ctx, password)
}

// proves is added to the BMC's answer in a result.
const proves = "that the node went down is for its neighbours and its next boot epoch to say"

// maxPassword is the maximum size of a password file, in bytes.
const maxPassword = 1024

// private reports whether a file is private: only its owner may read it, or root and the group of this process, as
// Kubernetes gives a pod its Secrets.
func private(st os.FileInfo) bool {
	sys, ok := st.Sys().(*syscall.Stat_t)
	return st.Mode()&0o077 == 0 || st.Mode()&0o077 == 0o040 && ok && sys.Uid == 0 && int(sys.Gid) == os.Getegid()
}

// password reads the file for every reset, because it may change while the process runs.
func (b BMC) password() (string, error) {
	return passwordIn(b.PasswordFile)
}

// passwordIn returns the password in the first line of a private file.
func passwordIn(path string) (string, error) {
	st, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("password: %w", err)
	}
	if !private(st) || !st.Mode().IsRegular() || st.Size() > maxPassword {
		return "", fmt.Errorf("password %s: given %s, %d bytes: want a file of at most %d that only its owner may read, or root and this "+
			"process' group", path, st.Mode(), st.Size(), maxPassword)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("password: %w", err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	if line = strings.TrimRight(line, "\r"); line == "" {
		return "", fmt.Errorf("password %s: its first line is empty", path)
	}
	return line, nil
}
