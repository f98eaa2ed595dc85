package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
)

// SetBinDir sets the directory of the programs, for a loaded cluster. See FindBinaries.
func (c *Cluster) SetBinDir(dir string) { c.binDir = dir }

// Exit is a process of the cluster that ended.
type Exit struct {
	Name string // "supervisor sup-0" or "node n0-0-0"
	Log  string // path of its log
	Err  error  // how it ended; nil for a success
}

func (e Exit) Error() string {
	how := "ended"
	if e.Err != nil {
		how = e.Err.Error()
	}
	return fmt.Sprintf("%s: %s; the end of %s:\n%s", e.Name, how, e.Log, tail(e.Log, 12))
}

// Exited receives every process that this Cluster started and that ended. When its buffer is full, further exits are
// dropped.
func (c *Cluster) Exited() <-chan Exit { return c.exited }

// Progress is the progress of a start.
type Progress struct {
	Phase         string // "supervisors", "agents", "nodes"
	Supervisors   int
	SupervisorsUp int
	Leader        string
	Nodes         int
	Started       int // nodes whose processes were started
	Normal        int // nodes that the fault map calls NORMAL
}

// Start starts all processes of a stopped cluster: the supervisors, and once these have a leader, the agents, a few at
// a time (pacer). The processes outlive the caller. It calls progress, if not nil, at every step. After an error, the
// started processes keep running: Stop ends them. After ErrBusy all processes are another program's.
func (c *Cluster) Start(ctx context.Context, progress func(Progress)) error {
	defer func() {
		c.ports.release()
		c.ports = nil
	}()
	bin, err := FindBinaries(c.binDir)
	if err != nil {
		return err
	}
	c.binDir = bin
	unlock, err := lockDir(c.dir, 0)
	if err != nil {
		return err
	}
	defer unlock()
	if running := c.Running(); len(running) > 0 {
		return fmt.Errorf("start the cluster in %s: %w: it is running (%s …)", c.dir, ErrBusy, running[0])
	}
	if err := c.freePorts(); err != nil {
		return err
	}
	c.exited = make(chan Exit, len(c.info.All())+len(c.info.Supervisors))
	p := Progress{Phase: "supervisors", Supervisors: len(c.serving("")), Nodes: c.info.placed()}
	report(progress, p)
	if err := c.startSupervisors(ctx); err != nil {
		return err
	}
	if err := c.waitLeader(ctx, &p, progress); err != nil {
		return err
	}
	p.Phase = "agents"
	return errors.Join(c.startNodes(ctx, &p, progress), c.save())
}

func report(progress func(Progress), p Progress) {
	if progress != nil {
		progress(p)
	}
}

// freePorts releases the ports held since Create. For a cluster that was started before, it checks that no other
// program uses its ports now.
func (c *Cluster) freePorts() error {
	if c.ports != nil {
		c.ports.unbind()
		return nil
	}
	if c.planned {
		return nil
	}
	var all []string
	for _, s := range c.info.Supervisors {
		all = append(all, s.GRPC, s.HTTP, s.Web, s.Report)
	}
	for _, n := range c.info.All() {
		all = append(all, n.HTTP)
	}
	for _, addr := range all {
		if addr == "" {
			continue
		}
		if err := portTaken(addr); err != nil {
			return fmt.Errorf("start the cluster in %s: %w: stop that program, or make a new cluster with --force-new", c.dir, err)
		}
	}
	return nil
}

func (c *Cluster) startNode(i int) error {
	n := c.info.at(i)
	if n.Left {
		return nil
	}
	dir := c.nodeDir(n.ID)
	pid, started, err := c.spawn(member{"node", string(n.ID)}, filepath.Join(dir, "run.log"), agentProgram,
		"run", "--config", filepath.Join(dir, "agent.yaml"), "--restart="+cmp.Or(c.info.Restart, "never"))
	if err != nil {
		return err
	}
	n.RunPID, n.Started = pid, started
	return nil
}

// member is a supervisor or a node.
type member struct{ kind, id string }

func (m member) String() string { return m.kind + " " + m.id }

// spawn starts a program in a session of its own, so that it outlives this one and the terminal,
// with its output going to a file.
func (c *Cluster) spawn(who member, log, program string, args ...string) (pid int, started uint64, err error) {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return 0, 0, fmt.Errorf("start %s: %w", who, err)
	}
	defer func() { _ = f.Close() }()
	argv := append([]string{filepath.Join(c.binDir, program)}, args...)
	if c.command != nil {
		argv = c.command(who.id, argv)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = c.dir
	cmd.Env = environment(os.Environ())
	cmd.Stdout, cmd.Stderr = f, f
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return 0, 0, fmt.Errorf("start %s: %w", who, err)
	}
	pid = cmd.Process.Pid
	// Read before the wait begins: until then the process exists, if only as a zombie.
	st, err := readStat(pid)
	exited := c.exited
	go func() { // ends with the process; reaps it
		err := cmd.Wait()
		select {
		case exited <- Exit{Name: who.String(), Log: log, Err: err}:
		default:
		}
	}()
	if err != nil {
		return 0, 0, fmt.Errorf("start %s: %w", who, err)
	}
	return pid, st.started, nil
}

// environment removes variables that would override the configuration of all nodes, and a service manager's variables
// for the process that starts the cluster, because it did not start the nodes' daemons.
func environment(environ []string) []string {
	not := []string{"LOFAMO_AGENT_", "LOFAMO_SUPERVISOR_", "NOTIFY_SOCKET=", "WATCHDOG_USEC=", "WATCHDOG_PID="}
	return slices.DeleteFunc(slices.Clone(environ), func(kv string) bool {
		return slices.ContainsFunc(not, func(prefix string) bool { return strings.HasPrefix(kv, prefix) })
	})
}

// Client connects to the cluster's supervisors with the viewer's certificate.
func (c *Cluster) Client() (*client.Client, error) { return c.ClientAs(pki.RoleViewer) }

// ClientAs connects to the cluster's supervisors as viewer, operator or approver.
func (c *Cluster) ClientAs(role pki.Role) (*client.Client, error) { return c.RegionClient(role, "") }

// RegionClient is ClientAs for the supervisors of a region; for the empty one those that serve the whole torus.
func (c *Cluster) RegionClient(role pki.Role, region string) (*client.Client, error) {
	tls, err := pki.ClientTLS(c.PKI(string(role)+".pem"), c.PKI(string(role)+".key"), c.PKI("ca.pem"), pki.AllowRoles(pki.RoleSupervisor))
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster in %s: %w", c.dir, err)
	}
	cfg := client.Config{TLS: tls}
	for _, s := range c.Serving(region) {
		cfg.Targets = append(cfg.Targets, s.GRPC)
	}
	if len(cfg.Targets) == 0 {
		return nil, c.noRegion(region)
	}
	return client.New(cfg)
}

// pollNodes is the interval between two queries for all nodes. The answers grow with the cluster, and the supervisors
// have more important work during a start.
func (c *Cluster) pollNodes() time.Duration {
	return max(pollEvery, min(time.Second, time.Duration(c.info.placed())*5*time.Millisecond))
}

// pollEvery is the minimum interval between two queries.
const pollEvery = 50 * time.Millisecond

// poll calls look until that reports done. It fails when ctx ends, with the last error of look, or when a process of
// the cluster ends.
func (c *Cluster) poll(ctx context.Context, every time.Duration, look func() (done bool, err error)) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last error
	for {
		done, err := look()
		if done {
			return err
		}
		// The last error of look is more useful than the end of the context.
		if err != nil && (ctx.Err() == nil || last == nil) {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", last, context.Cause(ctx))
		case e := <-c.exited:
			return e
		case <-tick.C:
		}
	}
}

func (c *Cluster) waitLeader(ctx context.Context, p *Progress, progress func(Progress)) error {
	cl, err := c.Client()
	if err != nil {
		return err
	}
	defer func() { _ = cl.Close() }()
	err = c.poll(ctx, pollEvery, func() (bool, error) {
		resp, err := cl.ListSupervisors(ctx)
		if err != nil {
			return false, err
		}
		p.SupervisorsUp, p.Leader = 0, ""
		for _, s := range resp.GetSupervisors() {
			if s.GetState() == lofamov1.State_NORMAL {
				p.SupervisorsUp++
			}
			if s.GetLeader() {
				p.Leader = s.GetId()
			}
		}
		report(progress, *p)
		if p.Leader == "" {
			return false, errors.New("the supervisors answer, but have no leader")
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("wait for the supervisors: %w%s", err, c.logsUnless(err, "supervisors"))
	}
	return nil
}

// WaitNormal waits until the supervisors have heard from every node and its links and call it NORMAL.
func (c *Cluster) WaitNormal(ctx context.Context, progress func(Progress)) error {
	return c.WaitNormalSince(ctx, time.Time{}, progress)
}

// WaitNormalSince is WaitNormal, and waits until the supervisors have heard every node since a time (zero: ever).
func (c *Cluster) WaitNormalSince(ctx context.Context, since time.Time, progress func(Progress)) error {
	err := c.watchNodes(ctx, since, progress, func(s nodesSeen) (bool, error) {
		if s.normal == s.placed {
			return true, nil
		}
		return false, fmt.Errorf("%d of %d nodes are NORMAL; not yet: %s", s.normal, s.placed,
			shorten(append(s.unheard, s.unwell...), 8))
	})
	if err != nil {
		return fmt.Errorf("wait for all nodes to be NORMAL: %w%s", err, c.logsUnless(err, "nodes"))
	}
	return nil
}

// WaitHeard waits until the supervisors have heard from every node and its links, and until either all are NORMAL or
// the set of others has been stable for as long as digests may be missing: a cluster that was stopped with faults has
// them again after a start. It returns the nodes that are not NORMAL, in words.
func (c *Cluster) WaitHeard(ctx context.Context, progress func(Progress)) (unwell []string, err error) {
	periods, err := c.Periods()
	if err != nil {
		return nil, err
	}
	rest := max(minRest, time.Duration(periods.DigestMisses)*periods.DigestPeriod)
	var since time.Time
	err = c.watchNodes(ctx, time.Time{}, progress, func(s nodesSeen) (bool, error) {
		if heard := s.normal + len(s.unwell); heard < s.placed {
			since = time.Time{}
			return false, fmt.Errorf("%d of %d nodes have reported; not yet: %s", heard, s.placed, shorten(s.unheard, 8))
		}
		if since.IsZero() || !slices.Equal(unwell, s.unwell) {
			since, unwell = time.Now(), s.unwell
		}
		if len(unwell) == 0 || time.Since(since) >= rest {
			return true, nil
		}
		return false, fmt.Errorf("all nodes have reported, and still change: %s", shorten(unwell, 8))
	})
	if err != nil {
		return nil, fmt.Errorf("wait for reports from all nodes: %w%s", err, c.logsUnless(err, "nodes"))
	}
	return unwell, nil
}

// minRest is the minimum time without changes before the result of a start counts as stable: checks of peripherals are
// as rare.
const minRest = 2 * time.Second

// nodesSeen is the map's view of the nodes at one moment.
type nodesSeen struct {
	placed  int // how many have a place
	normal  int
	unheard []string // those without a report since a time, or without known links, in words
	unwell  []string // other nodes that are not NORMAL, in words
}

// watchNodes checks all nodes until enough returns true, and then waits until the parent of the regions, if any, shows
// the same. A node without a report since a time (zero: ever) is unheard.
func (c *Cluster) watchNodes(ctx context.Context, since time.Time, progress func(Progress), enough func(nodesSeen) (bool, error)) error {
	clients, err := c.judges()
	defer func() {
		for _, cl := range clients {
			_ = cl.Close()
		}
	}()
	if err != nil {
		return err
	}
	p := Progress{Phase: "nodes", Supervisors: len(c.serving("")), Nodes: c.info.placed(), Started: c.info.placed()}
	var last nodesSeen
	err = c.poll(ctx, c.pollNodes(), func() (bool, error) {
		if last = (nodesSeen{placed: last.placed}); last.placed == 0 {
			if last.placed, err = c.placesNow(ctx, clients[0]); err != nil {
				return false, err
			}
		}
		for _, cl := range clients {
			resp, err := cl.ListNodes(ctx, &lofamov1.ListNodesRequest{})
			if err != nil {
				return false, err
			}
			p.Leader = resp.GetCluster().GetLeader()
			last.add(resp.GetNodes(), since)
		}
		p.Normal = last.normal
		report(progress, p)
		return enough(last)
	})
	if err != nil {
		return err
	}
	return c.waitParent(ctx, len(last.unwell))
}

// placesNow returns the number of nodes that have a place. 'lofamoctl node join' and 'leave' change it, and do not change cluster.json.
func (c *Cluster) placesNow(ctx context.Context, cl *client.Client) (int, error) {
	if c.info.Regions > 0 {
		return c.info.placed(), nil // the regions' configurations fix the places
	}
	top, err := cl.GetTopology(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the topology: %w", err)
	}
	n := 0
	for _, node := range top.GetNodes() {
		if node.GetCoord() != "" {
			n++
		}
	}
	if n == 0 {
		n = c.info.placed() // no topology is kept yet
	}
	return n, nil
}

func (s *nodesSeen) add(nodes []*lofamov1.Node, since time.Time) {
	for _, n := range nodes {
		switch {
		case n.GetSpare(): // its state is unknown
		// A restored map may still show NORMAL for a node that has not reported since: its age shows that.
		case n.GetAge() == nil || !linksKnown(n) || n.GetAge().AsDuration() >= time.Since(since):
			s.unheard = append(s.unheard, describe(n))
		case n.GetState() == lofamov1.State_NORMAL:
			s.normal++
		default:
			s.unwell = append(s.unwell, describe(n))
		}
	}
}

// judges returns clients of the supervisors that decide about nodes: the cluster's, or those of each region.
func (c *Cluster) judges() ([]*client.Client, error) {
	names := c.RegionNames()
	if len(names) == 0 {
		names = []string{""}
	}
	var out []*client.Client
	for _, name := range names {
		cl, err := c.RegionClient(pki.RoleViewer, name)
		if err != nil {
			return out, err
		}
		out = append(out, cl)
	}
	return out, nil
}

// waitParent waits until the parent of the regions, if there is one, shows as many nodes that are not NORMAL as the
// regions do.
func (c *Cluster) waitParent(ctx context.Context, unwell int) error {
	if c.info.Regions == 0 {
		return nil
	}
	cl, err := c.Client()
	if err != nil {
		return err
	}
	defer func() { _ = cl.Close() }()
	return c.poll(ctx, c.pollNodes(), func() (bool, error) {
		resp, err := cl.ListNodes(ctx, &lofamov1.ListNodesRequest{NotNormal: true})
		if err != nil || len(resp.GetNodes()) <= unwell {
			return err == nil, err
		}
		return false, fmt.Errorf("the parent of the regions shows %d nodes that are not NORMAL, such as %s", len(resp.GetNodes()),
			describe(resp.GetNodes()[0]))
	})
}

// linksKnown reports whether the state of all links of a node is known: the node is NORMAL a moment earlier.
func linksKnown(n *lofamov1.Node) bool {
	return !slices.ContainsFunc(n.GetComponents(), func(c *lofamov1.Component) bool {
		return strings.HasPrefix(c.GetName(), "link/") && c.GetState() == lofamov1.State_UNKNOWN
	})
}

// describe describes a node's state in a few words.
func describe(n *lofamov1.Node) string {
	s := fmt.Sprintf("%s is %s", n.GetId(), n.GetState())
	if c := n.GetCause(); c != lofamov1.Cause_NONE && c != lofamov1.Cause_CAUSE_UNSPECIFIED {
		s += " (" + c.String() + ")"
	}
	var parts []string
	for _, comp := range n.GetComponents() {
		if s := comp.GetState(); s != lofamov1.State_NORMAL && s != lofamov1.State_ABSENT {
			parts = append(parts, comp.GetName()+" "+comp.GetState().String())
		}
	}
	if len(parts) > 0 {
		s += " [" + shorten(parts, 4) + "]"
	} else if n.GetState() == lofamov1.State_NORMAL {
		s += " but has not spoken since the start"
	}
	return s
}

func shorten(list []string, n int) string {
	if len(list) <= n {
		return strings.Join(list, ", ")
	}
	return strings.Join(list[:n], ", ") + fmt.Sprintf(", and %d more", len(list)-n)
}

// Periods returns the periods that the cluster was made with.
func (c *Cluster) Periods() (config.Periods, error) {
	sup, err := config.LoadSupervisor(c.path("supervisors", c.info.Supervisors[0].ID, "supervisor.yaml"), nil)
	if err != nil {
		return config.Periods{}, err
	}
	return sup.Timing()
}
