package executor_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// beacon is the example's kind: a light at the rack that helps a technician find the machine. A custom kind is defined
// in pkg/response with its traits: here Notify, Undoable and Repeatable.
const beacon response.Kind = "beacon"

// Beacons switches on a node's light by a file that holds the response's ID.
type Beacons struct {
	Dir   string
	guard executor.Guard
}

// Do implements executor.Executor.
func (b *Beacons) Do(ctx context.Context, j executor.Job) executor.Result {
	if j.Kind != beacon || j.Target.Group != "" {
		return executor.Unchanged("kind %s of %s: want %s of a node", j.Kind, j.Target, beacon)
	}
	// Refuse a stale token and a repeated attempt. To survive a restart of this process, an executor has to keep them
	// on disk.
	if r, ok := b.guard.Admit(j.Effect); !ok {
		return r
	}
	file, own := filepath.Join(b.Dir, string(j.Target.Node)), j.Response
	// Check the state first: a light that is on stays on, and another response's light stays untouched. So
	// Recheck needs nothing more.
	was, err := os.ReadFile(file)
	switch lit := err == nil; {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return executor.Unchanged("look at %s: %v", file, err)
	case j.Undo && (!lit || string(was) != own):
		return executor.Done("not lit by this response")
	case !j.Undo && lit:
		return executor.Done("lit already, for %s", was)
	}
	// Check again right before the change: does the supervisor that decided this still lead?
	if err := executor.Fenced(ctx); err != nil {
		return executor.Held(err)
	}
	if j.Undo {
		err = os.Remove(file)
	} else {
		err = os.WriteFile(file, []byte(own), 0o600)
	}
	if err != nil {
		return executor.NotKnown("switch %s: %v", file, err) // the file may be half written: the next attempt checks
	}
	return executor.Done("switched")
}

// A custom executor checks before it acts, marks its effects as its own, and undoes only those.
func Example() {
	dir, err := os.MkdirTemp("", "beacons")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	var x executor.Executor = &Beacons{Dir: dir}
	attempt := 0
	do := func(of string, token uint64, undo bool) {
		attempt++
		r := x.Do(context.Background(), executor.Job{Cluster: "hall7", Effect: response.Effect{
			Attempt: response.Attempt{Response: of, Attempt: attempt}, Undo: undo, Kind: beacon,
			Target: response.Target{Node: "n1-0-0", Component: fault.ComponentNode}, Token: token, Timeout: time.Minute,
		}})
		fmt.Println(r.Outcome == response.Succeeded, r.Detail)
	}
	do("r5-1-abcde", 5, false)
	do("r5-1-abcde", 5, false)
	do("r5-2-fghij", 5, true)
	do("r5-1-abcde", 6, true)
	do("r5-1-abcde", 5, false)
	// Output:
	// true switched
	// true lit already, for r5-1-abcde
	// true not lit by this response
	// true switched
	// false token 5: 6 has been seen
}
