package process

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/fault"
)

// SlurmConfig configures drains of Slurm nodes.
type SlurmConfig struct {
	// Scontrol is the path of scontrol, absolute. Required.
	Scontrol string `json:"scontrol"`
	// Conf is the path of slurm.conf, absolute. Default: scontrol's own default.
	Conf string `json:"conf,omitempty"`
	// Nodes maps node IDs to Slurm's names where they differ. Default none.
	Nodes map[fault.NodeID]string `json:"nodes,omitempty"`
}

// slurmName matches the name of a single Slurm node: no list, and no brackets, which stand for several.
var slurmName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// checkSlurmName rejects names that stand for more than one node.
func checkSlurmName(name string) error {
	if !slurmName.MatchString(name) || strings.EqualFold(name, "all") || strings.EqualFold(name, "localhost") {
		return fmt.Errorf("given %q: want the name of one node: 1 to 63 letters, digits, '-', '_' and '.', and not ALL", name)
	}
	return nil
}

// Validate reports every invalid field.
func (c SlurmConfig) Validate() error {
	var errs []error
	if !filepath.IsAbs(c.Scontrol) {
		errs = append(errs, fmt.Errorf("scontrol: given %q: want an absolute path", c.Scontrol))
	}
	if c.Conf != "" && !filepath.IsAbs(c.Conf) {
		errs = append(errs, fmt.Errorf("conf: given %q: want an absolute path, or nothing", c.Conf))
	}
	seen := map[string]fault.NodeID{}
	for id, name := range c.Nodes {
		if err := checkSlurmName(name); err != nil {
			errs = append(errs, fmt.Errorf("nodes.%s: %w", id, err))
		}
		if other, twice := seen[name]; twice {
			errs = append(errs, fmt.Errorf("nodes: %s and %s are both %q: want each name once", min(id, other), max(id, other), name))
		}
		seen[name] = id
	}
	return errors.Join(errs...)
}

// slurmExecutor drains nodes of a Slurm cluster and returns them to service, through scontrol.
//
// Slurm knows neither fencing tokens nor conditional changes. So every act reads the node before and after it, and
// marks the drain in the node's reason, where operators see it:
//
//	lofamo:CLUSTER[RESPONSE@TOKEN RESPONSE@TOKEN #CRC] text of the policy
//
// An undo returns a node to service only if its reason has the mark of the response and no other response's mark is
// left. A node stays unchanged if it is drained for another reason, or if the CRC shows that somebody has changed the
// reason. Somebody else's change may come between the check and the act: docs/executor-process.md.
type slurmExecutor struct {
	cfg SlurmConfig

	mu   sync.Mutex
	busy map[string]chan struct{} // by Slurm's name; closed at the end of the act on the node
}

// newSlurm checks the configuration and that the program exists.
func newSlurm(cfg SlurmConfig) (*slurmExecutor, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if _, err := exec.LookPath(cfg.Scontrol); err != nil {
		return nil, fmt.Errorf("scontrol: %w", err)
	}
	return &slurmExecutor{cfg: cfg, busy: map[string]chan struct{}{}}, nil
}

// responseID matches the IDs allowed in a mark.
var responseID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)

// maxSlurmText is the maximum length of the policy's text in a reason, in bytes.
const maxSlurmText = 200

// Do implements executor.Executor.
func (x *slurmExecutor) Do(ctx context.Context, j executor.Job) executor.Result {
	name := string(j.Target.Node)
	if other, ok := x.cfg.Nodes[j.Target.Node]; ok {
		name = other
	}
	if err := checkSlurmName(name); err != nil {
		return executor.Unchanged("node: %s", err)
	}
	if !responseID.MatchString(j.Response) || !responseID.MatchString(j.Cluster) {
		return executor.Unchanged("response %q of cluster %q: want letters, digits, '.', '_' and '-': they are marked in the reason",
			j.Response, j.Cluster)
	}
	done, err := x.hold(ctx, name)
	if err != nil {
		return executor.Unchanged("another action on %s is in progress: %s", name, err)
	}
	defer done()
	was, err := x.look(ctx, name)
	if err != nil {
		return executor.Unchanged("%s", err)
	}
	if j.Undo {
		return x.giveBack(ctx, j, was)
	}
	return x.drain(ctx, j, was)
}

// hold locks a node, because acts on one node must not overlap.
func (x *slurmExecutor) hold(ctx context.Context, name string) (done func(), err error) {
	for {
		x.mu.Lock()
		other, busy := x.busy[name]
		if !busy {
			mine := make(chan struct{})
			x.busy[name] = mine
			x.mu.Unlock()
			return func() {
				x.mu.Lock()
				delete(x.busy, name)
				x.mu.Unlock()
				close(mine)
			}, nil
		}
		x.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (x *slurmExecutor) drain(ctx context.Context, j executor.Job, was slurmNode) executor.Result {
	reason := slurmMark{cluster: j.Cluster, text: slurmText(j.Parameters["reason"])}
	if was.drained {
		var ours bool
		switch reason, ours = parseMark(was.reason, j.Cluster); {
		case !ours:
			return executor.Done("%s is drained already, the reason is %s, and stays: %q", was.name, whose(was.reason, j.Cluster), was.reason)
		case reason.has(j.Response):
			return executor.Done("%s is drained already by this response: %q", was.name, was.reason)
		}
	} else if _, ours := parseMark(was.reason, j.Cluster); !ours && was.reason != "" {
		reason.text = slurmText(reason.text + " (reason before: " + was.reason + ")")
	}
	reason.entries = append(reason.entries, slurmEntry{j.Response, j.Token})
	return x.update(ctx, j, was, func(now slurmNode) bool {
		m, ours := parseMark(now.reason, j.Cluster)
		return now.drained && ours && m.has(j.Response)
	}, "State=DRAIN", "Reason="+reason.String())
}

func (x *slurmExecutor) giveBack(ctx context.Context, j executor.Job, was slurmNode) executor.Result {
	reason, ours := parseMark(was.reason, j.Cluster)
	switch {
	case !was.drained:
		return executor.Done("%s is not drained", was.name)
	case !ours:
		return executor.Done("%s is drained, the reason is %s, and stays so: %q", was.name, whose(was.reason, j.Cluster), was.reason)
	case !reason.has(j.Response):
		return executor.Done("%s is drained for a reason that is not this response's, and stays so: %q", was.name, was.reason)
	}
	reason.entries = slices.DeleteFunc(reason.entries, func(e slurmEntry) bool { return e.response == j.Response })
	given := []string{"State=UNDRAIN"} // not RESUME, which would also return a node that is down to service
	if len(reason.entries) > 0 {
		given = []string{"Reason=" + reason.String()}
	}
	return x.update(ctx, j, was, func(now slurmNode) bool {
		m, ours := parseMark(now.reason, j.Cluster)
		return !now.drained || !ours || !m.has(j.Response)
	}, given...)
}

// lookTime limits the check of an act's outcome after the attempt's time has run out. Slurm 24.11 sometimes needs more
// than 5 s to answer.
const lookTime = 12 * time.Second

// slurmRefusals are errors of scontrol that prove that slurmctld will not carry out the request: slurmctld has refused it, or never
// received it. A failure to send, to receive or to authenticate an answer proves nothing.
var slurmRefusals = []string{
	"Access/permission denied",
	"Invalid user id",
	"Invalid node name specified",
	"Invalid node state specified",
	"Requested operation is presently disabled",
	"Unable to contact slurm controller (connect failure)",
}

// slurmRefuses reports whether a failed scontrol has written one of slurmRefusals as its last line.
func slurmRefuses(e executor.ProgramResult) bool {
	if e.Killed || e.Code <= 0 || e.Cut {
		return false
	}
	said := strings.TrimSpace(string(e.Stderr))
	last := said[strings.LastIndexByte(said, '\n')+1:]
	return slices.ContainsFunc(slurmRefusals, func(why string) bool { return strings.HasSuffix(last, ": "+why) })
}

// update changes a node and checks the result on the node itself, because scontrol's answer is not reliable.
func (x *slurmExecutor) update(ctx context.Context, j executor.Job, was slurmNode, good func(now slurmNode) bool,
	given ...string) executor.Result {
	if err := executor.Fenced(ctx); err != nil {
		return executor.Held(err)
	}
	e := x.scontrol(ctx, append([]string{"update", "NodeName=" + was.name}, given...)...)
	if !e.Started {
		return executor.Unchanged("scontrol update: %s", e)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTime)
	defer cancel()
	now, err := x.look(ctx, was.name)
	switch {
	case err != nil && e.OK():
		// The change was carried out; its current effect is unknown.
		return executor.NotKnown("scontrol update: %s; and then: %s", e, err)
	case err != nil:
		return executor.NotKnown("scontrol update: %s; its outcome: %s", e, err)
	case good(now):
		return executor.Done("%s: %s, was %s", was.name, now, was.state)
	case !e.OK() && !slurmRefuses(e):
		// slurmctld may still have the order and carry it out: scontrol gives up by itself after MessageTimeout.
		return executor.NotKnown("scontrol update: %s; %s is %s", e, was.name, now)
	case now.state == was.state && now.reason == was.reason:
		return executor.Unchanged("scontrol update: %s; %s is %s", e, was.name, now)
	default:
		return executor.Partly("%s is %s, was %s; scontrol update: %s; undo %t", was.name, now, was, e, j.Undo)
	}
}

func (x *slurmExecutor) scontrol(ctx context.Context, args ...string) executor.ProgramResult {
	s := executor.Program{Path: x.cfg.Scontrol, Args: args, MaxOutput: 64 << 10}
	if x.cfg.Conf != "" {
		s.Env = []string{"SLURM_CONF=" + x.cfg.Conf}
	}
	return executor.RunProgram(ctx, s)
}

// look reads the state of a node from Slurm.
func (x *slurmExecutor) look(ctx context.Context, name string) (slurmNode, error) {
	e := x.scontrol(ctx, "show", "node", name)
	if !e.OK() || e.Cut {
		return slurmNode{}, fmt.Errorf("scontrol show node %s: %s", name, e)
	}
	return parseNode(name, string(e.Stdout))
}
