// Package cluster has the commands that make and maintain clusters: up, down, inject and web for one on this machine,
// cluster for the inventory of a real one, supervisor for the replicas and their store, node, maintenance, bundle and regs
// for single nodes, and cert for certificates.
package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/program"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

type upFlags struct {
	nodes       int
	dims        string
	supervisors int
	regions     int
	spares      int
	interfaces  int
	restart     string
	preset      string
	binDir      string
	logLevel    string
	detach      bool
	forceNew    bool
	timeout     time.Duration
	fit         cluster.Fit // zero: a preset was named
	changed     func(name string) bool
}

// UpCommand returns `lofamoctl up`.
func UpCommand(a *command.App) *cobra.Command {
	f := &upFlags{}
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Make and start a whole cluster on this machine",
		Long: `Makes a cluster of real processes on this machine: for every node a host half and a DNP half, and supervisors with
embedded etcd, with their own keys and certificates, all on 127.0.0.1. It waits until the fault map calls every node
NORMAL.

In the foreground it runs until Ctrl-C, which stops the cluster. With --detach the cluster runs on until 'lofamoctl
down'. A stopped cluster in the directory starts again with the same settings; --force-new replaces it. Faults
injected into sensors come back: the command then waits for a report of every node and names those that are not
NORMAL. Faults injected into processes, links and networks ended with these.`,
		Example: `  lofamoctl up
  lofamoctl up --detach --dims 3x3x3 --preset fast --dir /tmp/c
  lofamoctl up --restart always
  lofamoctl up --force-new --dims 4x4 --supervisors 5
  lofamoctl up --nodes 11
  lofamoctl up --spares 1
  lofamoctl up --dims 4x2x2 --regions 2 --supervisors 1`,
		Args: command.Exactly(),
	}
	fl := cmd.Flags()
	fl.StringVar(&f.dims, "dims", "2x2x2", "sizes of the torus: one to three, as in 4, 4x4 or 2x2x2; a dimension of size 1 has no links; "+
		"places may be empty, as in \"3x2x2 without 2,1,1\"")
	fl.IntVar(&f.nodes, "nodes", 0, fmt.Sprintf("number of nodes, 2 to %d, instead of --dims: chooses the torus whose worst-connected node "+
		"has the most neighbours; its last places may be empty", cluster.MaxNodes))
	fl.IntVar(&f.supervisors, "supervisors", 3, "replicas of the supervisor: 1, 3 or 5")
	fl.IntVar(&f.regions, "regions", 0, "divide the torus, across its largest dimension, into this many regions with supervisors of their "+
		"own, below a parent of all")
	fl.IntVar(&f.spares, "spares", 0, "nodes without a place, spare-0 and so on, which can replace another one ('node replace NODE "+
		"spare-0')")
	fl.IntVar(&f.interfaces, "service-interfaces", 1, "service interfaces of a node: 1, or 2 of which one can be cut alone "+
		"('inject NODE cut-interface 1')")
	fl.StringVar(&f.restart, "restart", "never", "restart of halves that end or hang: never (a killed half stays dead until "+
		"'inject NODE heal'), always (its recovery daemon starts it again)")
	fl.StringVar(&f.preset, "preset", "", "periods: "+strings.Join(config.PresetNames(), ", ")+
		" (default: default, or relaxed if default would use more than a quarter of all cores)")
	fl.BoolVar(&f.detach, "detach", false, "return when the cluster is up, and let it run on")
	fl.BoolVar(&f.forceNew, "force-new", false, "replace a stopped cluster in the directory by a new one")
	program.DurationVar(fl, &f.timeout, "timeout", 0, "time limit until all nodes are NORMAL or, when a cluster starts again, heard "+
		"(default 60s plus 1s a node)")
	fl.StringVar(&f.binDir, "bin-dir", "", "directory of the programs lofamo-agent and lofamo-supervisor (default $"+cluster.EnvBinDir+
		", else that of lofamoctl)")
	fl.StringVar(&f.logLevel, "log-level", "info", "of agents and supervisors: debug, info, warn, error")
	_ = cmd.RegisterFlagCompletionFunc("preset", cobra.FixedCompletions(config.PresetNames(), cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("restart", cobra.FixedCompletions([]string{"never", "always"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("supervisors", cobra.FixedCompletions([]string{"1", "3", "5"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f.changed = cmd.Flags().Changed
		return up(a, cmd.Context(), f)
	}
	return cmd
}

// options checks the flags as far as possible before any change.
func (f *upFlags) options(dir string) (cluster.Options, error) {
	dims, err := f.torus()
	if err != nil {
		return cluster.Options{}, command.Usage(err)
	}
	if n := dims.Nodes(); n < 2 || n > cluster.MaxNodes {
		return cluster.Options{}, command.Usagef("--dims %s: %s: want 2 to %d on one machine", f.dims, fault.Plural(n, "node"), cluster.MaxNodes)
	}
	if !slices.Contains([]int{1, 3, 5}, f.supervisors) {
		return cluster.Options{}, command.Usagef("--supervisors %d: want 1, 3 or 5 (a majority must remain when one dies, and an even number "+
			"adds none)", f.supervisors)
	}
	if size := max(dims.X, dims.Y, dims.Z); f.regions < 0 || f.regions == 1 || f.regions > size {
		return cluster.Options{}, command.Usagef("--regions %d: want 0 (not divided) or 2 to %d, the largest size of the torus", f.regions, size)
	}
	if f.spares < 0 || f.spares > cluster.MaxNodes || f.spares > 0 && f.regions > 0 {
		return cluster.Options{}, command.Usagef("--spares %d: want 0 to %d, and none with --regions", f.spares, cluster.MaxNodes)
	}
	if f.interfaces < 1 || f.interfaces > cluster.MaxServiceInterfaces {
		return cluster.Options{}, command.Usagef("--service-interfaces %d: want 1 to %d", f.interfaces, cluster.MaxServiceInterfaces)
	}
	if !slices.Contains([]string{"never", "always"}, f.restart) {
		return cluster.Options{}, command.Usagef("--restart %q: want never or always", f.restart)
	}
	if f.preset == "" && !f.changed("preset") {
		f.fit = cluster.FitPreset(dims, f.spares, runtime.GOMAXPROCS(0))
		f.preset = f.fit.Preset
	}
	if _, err := config.Preset(f.preset); err != nil {
		return cluster.Options{}, command.Usage(fmt.Errorf("--%w", err))
	}
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, f.logLevel) {
		return cluster.Options{}, command.Usagef("--log-level %q: want debug, info, warn or error", f.logLevel)
	}
	if f.timeout < 0 {
		return cluster.Options{}, command.Usagef("--timeout %v: want a positive time such as 90s", f.timeout)
	}
	return cluster.Options{
		Dir: dir, Dims: dims, Supervisors: f.supervisors, Regions: f.regions, Spares: f.spares, ServiceInterfaces: f.interfaces, Preset: f.preset,
		BinDir:  f.binDir,
		Restart: f.restart, LogLevel: f.logLevel, Force: f.forceNew,
	}, nil
}

// torus returns the torus that the flags ask for.
func (f *upFlags) torus() (grid.Dims, error) {
	if f.changed("nodes") {
		if f.changed("dims") {
			return grid.Dims{}, fmt.Errorf("--nodes %d and --dims %s: want one of the two", f.nodes, f.dims)
		}
		if f.nodes < 2 || f.nodes > cluster.MaxNodes {
			return grid.Dims{}, fmt.Errorf("--nodes %d: want 2 to %d on one machine", f.nodes, cluster.MaxNodes)
		}
		return grid.Fit(f.nodes)
	}
	d, err := grid.ParseTorus(f.dims)
	if err != nil {
		return grid.Dims{}, fmt.Errorf("--dims: %w", err)
	}
	return d, nil
}

func up(a *command.App, ctx context.Context, f *upFlags) error {
	if name := a.Elsewhere(); name != "" {
		return command.Usagef("up makes a cluster on this machine: %s names another one", name)
	}
	dir, _ := a.ClusterDir()
	o, err := f.options(dir)
	if err != nil {
		return err
	}
	if _, err := cluster.FindBinaries(f.binDir); err != nil {
		return err
	}
	c, made, err := makeOrReuse(a, o, f)
	if err != nil {
		return err
	}
	begin := a.Env.Now()
	unwell, err := bringUp(a, ctx, c, made, f.timeout)
	switch {
	case errors.Is(err, cluster.ErrBusy): // its processes are not ours to stop
		return err
	case err != nil:
		return giveUp(ctx, c, made, err)
	}
	printUp(a, a.Env.Now().Sub(begin), c.Dims().Nodes(), unwell)
	if err := c.Unweighted(); err != nil {
		a.Printf("%v\n", err)
	}
	printHints(a, c, f)
	if f.detach {
		return nil
	}
	return stay(a, ctx, c)
}

// makeOrReuse creates a new cluster, or uses the stopped one in the directory if it matches the flags.
func makeOrReuse(a *command.App, o cluster.Options, f *upFlags) (c *cluster.Cluster, made bool, err error) {
	old, err := cluster.Load(o.Dir)
	if err == nil && old.Info().Complete && !f.forceNew {
		if running := old.Running(); len(running) > 0 {
			return nil, false, fmt.Errorf("the cluster in %s is running already (%s …): `lofamoctl down --dir %s` stops it; --dir takes another "+
				"directory", old.Dir(), running[0], o.Dir)
		}
		if err := f.differs(old); err != nil {
			return nil, false, err
		}
		old.SetBinDir(f.binDir)
		a.Printf("starting the %s cluster in %s again\n", old.Dims(), old.Dir())
		return old, false, nil
	}
	c, err = cluster.Create(o)
	if errors.Is(err, cluster.ErrLongPath) {
		return nil, false, command.Usage(fmt.Errorf("--dir: %w", err))
	}
	if err != nil {
		return nil, false, err
	}
	info := c.Info()
	nodes := fault.Plural(len(info.Nodes), "node")
	if n := len(info.Spares); n > 0 {
		nodes += ", " + fault.Plural(n, "spare")
	}
	a.Printf("made a %s cluster in %s: %s, %s, preset %s\n", info.Dims, c.Dir(), nodes, fault.Plural(len(info.Supervisors), "supervisor"),
		info.Preset)
	if f.fit.Preset == config.PresetRelaxed {
		a.Printf("%s\n", f.fit)
	}
	return c, true, nil
}

// differs refuses flags that ask for another cluster than the stopped one.
func (f *upFlags) differs(old *cluster.Cluster) error {
	info := old.Info()
	dims, _ := f.torus() // was checked
	for _, d := range []struct {
		flag        string
		given, have string
	}{
		{"dims", dims.String(), info.Dims},
		{"nodes", fmt.Sprint(f.nodes), fmt.Sprint(old.Dims().Nodes())},
		{"supervisors", fmt.Sprint(f.supervisors), fmt.Sprint(len(old.Serving("")))},
		{"regions", fmt.Sprint(f.regions), fmt.Sprint(info.Regions)},
		{"spares", fmt.Sprint(f.spares), fmt.Sprint(len(info.Spares))},
		{"service-interfaces", fmt.Sprint(f.interfaces), fmt.Sprint(max(1, info.ServiceInterfaces))},
		{"restart", f.restart, cmp.Or(info.Restart, "never")},
		{"preset", f.preset, info.Preset},
	} {
		if f.changed(d.flag) && d.given != d.have {
			return fmt.Errorf("the stopped cluster in %s has %s %s, not %s: leave out --%s to start it, or replace it with --force-new", old.Dir(),
				d.flag, d.have, d.given, d.flag)
		}
	}
	if f.changed("log-level") {
		return fmt.Errorf("--log-level is for a new cluster: leave it out to start the stopped one in %s, or replace that with --force-new",
			old.Dir())
	}
	return nil
}

// printUp describes the result of a start.
func printUp(a *command.App, took time.Duration, nodes int, unwell []string) {
	if len(unwell) == 0 {
		a.Printf("up after %s: all %d nodes are NORMAL\n", command.Duration(took), nodes)
		return
	}
	a.Printf("up after %s: all %d nodes report, and %d of them are NORMAL; the "+
		"others:\n", command.Duration(took), nodes, nodes-len(unwell))
	for _, n := range unwell {
		a.Printf("  %s\n", n)
	}
	a.Printf("'lofamoctl inject all heal' undoes the faults injected before the cluster was stopped\n")
}

// bringUp starts a cluster and waits for its nodes: until all are NORMAL in a new cluster, until all have reported in
// another. It returns the nodes that are not NORMAL, in words.
func bringUp(a *command.App, ctx context.Context, c *cluster.Cluster, made bool, timeout time.Duration) (unwell []string, err error) {
	if timeout == 0 {
		timeout = 60*time.Second + time.Duration(c.Dims().Nodes())*time.Second
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not within %v", timeout))
	defer cancel()
	show := progress(a)
	defer show.end()
	if err := c.Start(ctx, show.step); err != nil {
		return nil, err
	}
	if !made {
		return c.WaitHeard(ctx, show.step)
	}
	return nil, c.WaitNormal(ctx, show.step)
}

// giveUp cleans up after a start that failed.
func giveUp(ctx context.Context, c *cluster.Cluster, made bool, why error) error {
	if errors.Is(why, context.Canceled) {
		why = errors.New("interrupted")
	}
	clean := c.Stop(context.WithoutCancel(ctx))
	if made {
		clean = errors.Join(clean, c.Abandon())
	}
	if clean != nil {
		return fmt.Errorf("start the cluster: %w; and cleaning up: %w", why, clean)
	}
	return fmt.Errorf("start the cluster: %w\neverything is stopped again; the logs are in %s", why, c.Dir())
}

// stay waits for Ctrl-C, reports processes that end meanwhile, and stops the cluster.
func stay(a *command.App, ctx context.Context, c *cluster.Cluster) error {
	for {
		select {
		case <-ctx.Done():
			a.Printf("\nstopping\n")
			if err := c.Stop(context.WithoutCancel(ctx)); err != nil {
				return err
			}
			a.Printf("stopped; the logs are in %s, 'lofamoctl up' starts the cluster again\n", c.Dir())
			return nil
		case e := <-c.Exited():
			if len(c.Running()) == 0 {
				a.Printf("the cluster was stopped\n")
				return nil
			}
			if e.Err != nil {
				a.Printf("%s ended: %v\n", e.Name, e.Err)
			} else {
				a.Printf("%s ended\n", e.Name)
			}
		}
	}
}

func printHints(a *command.App, c *cluster.Cluster, f *upFlags) {
	if p, err := c.Periods(); err == nil {
		a.Printf("\nWith preset %s, a fault is in the map at the latest\n  %4v after the death of one half (watchdog, challenge, transit)\n"+
			"  %4v after the death of a whole node (silence, challenge, transit)\n",
			c.Info().Preset, p.HalfBound(), p.NodeBound())
	}
	flag := ""
	if dir, from := a.ClusterDir(); from == "--dir" {
		flag = " --dir " + dir
	}
	nodes := c.Info().Nodes
	coord := nodes[len(nodes)*5/8].Coord
	var dir grid.Direction
	if links := c.Dims().LinksOf(c.Dims().Node(len(nodes) * 5 / 8)); len(links) > 0 {
		dir = links[0]
	}
	a.Printf("\nWhat a Prometheus may scrape is listed in %s\n", c.Targets())
	a.Printf("\nTry next%s:\n", map[bool]string{true: "", false: ", in another terminal"}[f.detach])
	var rows [][]string
	hints := [][2]string{
		{"status", "open incidents: since when, why, what to do"},
		{"get nodes", "every node, its state and cause"},
		{"map", "the torus in the terminal"},
		{"web", "a link to it in the browser" + webAt(c)},
		{"watch", "changes as they are committed"},
		{"inject " + coord + " kill-host", "a real SIGKILL to the host half"},
		{"inject " + coord + " cut-link " + dir.String() + " --for 5s", "a cable cut, and mended"},
		{"get node " + coord, "one node: its faults and the evidence"},
		{"regs " + coord, "the node's registers, decoded"},
		{"inject all heal", "put everything right"},
		{"down", "stop the cluster"},
	}
	if spares := c.Info().Spares; len(spares) > 0 {
		replace := [2]string{"node replace " + string(nodes[len(nodes)*5/8].ID) + " " + string(spares[0].ID),
			"put a spare in the place of a node"}
		hints = slices.Insert(hints, len(hints)-2, replace)
	}
	for _, line := range hints {
		rows = append(rows, []string{"  lofamoctl " + line[0] + flag, line[1]})
	}
	_ = a.Table(rows) // errors are ignored, as with Printf
	if !f.detach {
		a.Printf("\nCtrl-C stops the cluster.\n")
	}
}

// webAt returns the address of the first supervisor's page; empty: it has none.
func webAt(c *cluster.Cluster) string {
	if all := c.Serving(""); len(all) > 0 && all[0].Web != "" {
		return ", http://" + all[0].Web
	}
	return ""
}

// progressLine shows the progress of a start: in place on a terminal, else line by line.
type progressLine struct {
	app   *command.App
	last  string
	phase string
	at    time.Time // of the last line
}

func progress(a *command.App) *progressLine { return &progressLine{app: a} }

func (p *progressLine) step(s cluster.Progress) {
	var line string
	switch s.Phase {
	case "supervisors":
		line = fmt.Sprintf("supervisors: %d of %d answer", s.SupervisorsUp, s.Supervisors)
		if s.Leader != "" {
			line += ", " + s.Leader + " leads"
		}
	case "agents":
		if !p.app.Env.Terminal && s.Started < s.Nodes {
			return
		}
		line = fmt.Sprintf("agents: %d of %d nodes started", s.Started, s.Nodes)
	default:
		line = fmt.Sprintf("nodes: %d of %d NORMAL", s.Normal, s.Nodes)
	}
	// Without a terminal, the counts that come and go are worth a line a second.
	now := p.app.Env.Now()
	if line == p.last || !p.app.Env.Terminal && s.Phase == "nodes" && p.phase == "nodes" && s.Normal < s.Nodes && now.Sub(p.at) < time.Second {
		return
	}
	p.last, p.at, p.phase = line, now, s.Phase
	if p.app.Env.Terminal {
		p.app.Printf("\r\x1b[K%s", line)
	} else {
		p.app.Printf("%s\n", line)
	}
}

func (p *progressLine) end() {
	if p.app.Env.Terminal && p.last != "" {
		p.app.Printf("\n")
	}
}
