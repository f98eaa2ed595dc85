package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/program"
)

// SupervisorCommand returns `lofamoctl supervisor`.
func SupervisorCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "supervisor list|add|remove|replace|snapshot|alarms|defrag",
		Short: "Manage the supervisors' replicas and their embedded etcd",
		Long: `Manages the supervisors' replicas and their embedded etcd: members, snapshots, alarms, space. It needs the role
operator or supervisor; in a local cluster it uses the operator's certificate.

Members have their names in etcd, by default the supervisors' ids. For an external etcd, use its own tools (etcdctl,
etcdutl) instead. If the quorum is lost for good, see lofamo-supervisor restore --help.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			const want = "want list, add, remove, replace, snapshot, alarms or defrag"
			if len(args) == 0 {
				return command.Usagef("supervisor: %s", want)
			}
			return command.Usagef("supervisor %s: %s", args[0], want)
		},
	}
	cmd.AddCommand(supervisorListCommand(a), supervisorAddCommand(a), supervisorRemoveCommand(a), supervisorReplaceCommand(a),
		supervisorSnapshotCommand(a), supervisorAlarmsCommand(a), supervisorDefragCommand(a))
	return cmd
}

// asOperator runs a command that needs the operator's certificate.
func asOperator(a *command.App, ctx context.Context, what string, do func(context.Context, command.Session) error) error {
	s, err := a.ConnectAs(pki.RoleOperator)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	if err := do(ctx, s); err != nil {
		var usage command.UsageError
		if errors.As(err, &usage) {
			return err
		}
		return s.AddHint(fmt.Errorf("supervisor %s: %w", what, command.Plain(err)))
	}
	return nil
}

func supervisorListCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "The members of the embedded etcd with their condition", Args: command.Exactly()}
	o := command.AllFormats(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return asOperator(a, cmd.Context(), "list", func(ctx context.Context, s command.Session) error {
			resp, err := s.ListMembers(ctx)
			if err != nil {
				return err
			}
			if resp.GetStale() {
				a.Warnf("lofamoctl: no quorum: this is one member's own copy\n")
			}
			if o.Format.Structured() {
				return a.PrintMessage(o.Format, resp)
			}
			return a.Table(memberRows(resp.GetMembers(), o.Format == command.FormatWide))
		})
	}
	return cmd
}

func memberRows(members []*lofamov1.Member, wide bool) [][]string {
	head := []string{"NAME", "ID", "VOTES", "RAFT", "REVISION", "STORE", "IN USE", "QUOTA", "ALARMS", "PROBLEM"}
	if wide {
		head = append(head, "VERSION", "PEER", "CLIENT")
	}
	rows := [][]string{head}
	for _, m := range members {
		votes, raft := "yes", "-"
		if m.GetLearner() {
			votes = "no, learner"
		}
		if m.GetRaftLeader() {
			raft = "leader"
		} else if m.GetHealthy() {
			raft = "follower"
		}
		r := []string{
			command.Dash(m.GetName()), m.GetId(), votes, raft, number(m.GetRevision()), mebibytes(m.GetDbBytes()), mebibytes(m.GetDbInUseBytes()),
			mebibytes(m.GetQuotaBytes()), command.Dash(strings.Join(m.GetAlarms(), ",")), command.Dash(m.GetProblem()),
		}
		if wide {
			r = append(r, command.Dash(m.GetVersion()), command.Dash(m.GetPeerUrl()), command.Dash(m.GetClientUrl()))
		}
		rows = append(rows, r)
	}
	return rows
}

func number(n uint64) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

func mebibytes(n uint64) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}

// addWait adds the flag that bounds the wait for a new member.
func addWait(cmd *cobra.Command, wait *time.Duration) {
	program.DurationVar(cmd.Flags(), wait, "wait", 5*time.Minute, "how long the new member may take to catch up: 1s to 1h")
}

func checkWait(wait time.Duration) error {
	if wait < time.Second || wait > time.Hour {
		return command.Usagef("--wait %s: want 1s to 1h", wait)
	}
	return nil
}

func supervisorAddCommand(a *command.App) *cobra.Command {
	var peerURL string
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "add [NAME --peer-url URL]",
		Short: "Add a replica",
		Long: `Adds a member: as a learner without a vote, and with a vote once it has caught up. It prints what to do on the new
replica's machine, and waits for the replica. If the wait ends too early, repeat the command to continue.

In a local cluster, without arguments, it also makes the replica and starts it.

Use three or five replicas: an even number tolerates no more failures than one less.`,
		Example: "  lofamoctl supervisor add s4 --peer-url https://10.0.0.4:2380",
		Args:    command.Between(0, "NAME"),
	}
	cmd.Flags().StringVar(&peerURL, "peer-url", "", "etcd.peerURL of its configuration, https://ip:port")
	addWait(cmd, &wait)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkWait(wait); err != nil {
			return err
		}
		if (len(args) == 0) != (peerURL == "") {
			return command.Usagef("supervisor add: want both NAME and --peer-url, or in a local cluster neither")
		}
		if to, err := a.Access(); err != nil {
			return err
		} else if len(args) == 0 && to.Server != "" {
			return command.Usagef("supervisor add: NAME and --peer-url are missing")
		}
		return asOperator(a, cmd.Context(), "add", func(ctx context.Context, s command.Session) error {
			if len(args) == 0 {
				return addLocal(a, ctx, s, wait)
			}
			return s.AddMember(ctx, &lofamov1.AddMemberRequest{Name: args[0], PeerUrl: peerURL, Wait: durationpb.New(wait)},
				step(a, ctx, args[0], starterOf(a, s, args[0])))
		})
	}
	return cmd
}

// addLocal makes a replica of a local cluster, and removes it again if the members do not accept it.
func addLocal(a *command.App, ctx context.Context, s command.Session, wait time.Duration) error {
	name, peerURL, err := s.Cluster.PlanSupervisor()
	if err != nil {
		return err
	}
	taken, local := false, localStarter(s)
	start := local.start
	local.start = func(ctx context.Context, name, initialCluster string) error {
		taken = true
		return start(ctx, name, initialCluster)
	}
	err = s.AddMember(ctx, &lofamov1.AddMemberRequest{Name: name, PeerUrl: peerURL, Wait: durationpb.New(wait)}, step(a, ctx, name, local))
	if err != nil && !taken {
		err = errors.Join(err, s.Cluster.ForgetSupervisor(context.WithoutCancel(ctx), name))
	}
	return err
}

// starter starts the replica of a new member.
type starter struct {
	// start starts it with an empty data directory, to join the members in initialCluster.
	start func(ctx context.Context, name, initialCluster string) error
	// resume starts it with the data that it has, unless it runs.
	resume func(name string) error
}

// step prints every step of a change of members, and has the new one started when it is its time.
func step(a *command.App, ctx context.Context, name string, by starter) func(*lofamov1.MemberProgress) error {
	started := false
	return func(p *lofamov1.MemberProgress) error {
		a.Printf("%s\n", p.GetMessage())
		switch {
		case p.GetStep() == lofamov1.MemberStep_ADDED:
			started = true
			return by.start(ctx, name, p.GetInitialCluster())
		case p.GetStep() == lofamov1.MemberStep_CATCHING_UP && !started: // an earlier command added it
			started = true
			return by.resume(name)
		}
		return nil
	}
}

// starterOf returns the starter of a replica of this cluster, or of one on another machine, for which it prints what to do.
func starterOf(a *command.App, s command.Session, name string) starter {
	if s.Cluster != nil {
		if _, err := s.Cluster.Supervisor(name); err == nil {
			return localStarter(s)
		}
	}
	return starter{
		start: func(_ context.Context, name, initialCluster string) error {
			a.Printf("In the configuration of %s:\n  etcd:\n    clusterState: existing\n    initialCluster: %s\n", name, initialCluster)
			return nil
		},
		resume: func(string) error { return nil }, // the message says what to do
	}
}

// localStarter returns the starter of replicas of a local cluster.
func localStarter(s command.Session) starter {
	return starter{
		start: func(ctx context.Context, name, initialCluster string) error {
			if err := s.Cluster.EmptySupervisor(ctx, name, initialCluster); err != nil {
				return err
			}
			return s.Cluster.StartSupervisor(name)
		},
		resume: s.Cluster.ResumeSupervisor,
	}
}

func supervisorReplaceCommand(a *command.App) *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "replace NAME",
		Short: "Replace a replica whose data are lost by one of the same name and addresses",
		Long: `Removes a member whose data are lost, and adds its successor with the same name and addresses. Nothing else changes:
neither the other replicas' configurations nor the agents'. The command refuses if the remaining members that answer
would be no majority.

On the replica's machine its data directory must be empty, and etcd.clusterState must be existing (in the file, or as
LOFAMO_SUPERVISOR_ETCD_CLUSTERSTATE). In a local cluster this command does that and starts the replica.`,
		Args: command.Exactly("NAME"),
	}
	addWait(cmd, &wait)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkWait(wait); err != nil {
			return err
		}
		return asOperator(a, cmd.Context(), "replace", func(ctx context.Context, s command.Session) error {
			if s.Cluster != nil {
				if _, err := s.Cluster.Supervisor(args[0]); err != nil {
					return command.Usage(err)
				}
			}
			return s.ReplaceMember(ctx, &lofamov1.ReplaceMemberRequest{Name: args[0], Wait: durationpb.New(wait)},
				step(a, ctx, args[0], starterOf(a, s, args[0])))
		})
	}
	return cmd
}

func membersLeft(n int) string {
	if n == 1 {
		return "1 member is left"
	}
	return fmt.Sprintf("%d members are left", n)
}

// warnFragile warns if no further member may fail.
func warnFragile(a *command.App, members []*lofamov1.Member) {
	voters := 0
	for _, m := range members {
		if !m.GetLearner() {
			voters++
		}
	}
	switch voters {
	case 1:
		a.Warnf("lofamoctl: one member alone tolerates no loss: when it fails nothing is decided, and when its disk fails all since the last " +
			"snapshot is lost: add two more (supervisor add)\n")
	case 2:
		a.Warnf("lofamoctl: two members tolerate no loss: when one fails there is no quorum, and nothing is decided: " +
			"add a third (supervisor add)\n")
	}
}

func supervisorRemoveCommand(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove a replica permanently",
		Long: `Removes a member permanently: its replica ends, and its data directory becomes useless. The other replicas and the API
forget it. The command refuses for the last member, and if the remaining members that answer would be no majority. It
warns if the remaining members tolerate no further loss: two members tolerate no more than one does. Remove its
address from the agents' configurations when convenient. In a local cluster the command also removes its files.`,
		Args: command.Exactly("NAME (or the member's id)"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return asOperator(a, cmd.Context(), "remove", func(ctx context.Context, s command.Session) error {
				members, err := s.ListMembers(ctx)
				if err != nil {
					return err
				}
				name := args[0] // its files in a local cluster bear the name, not the id
				if m := findMember(members.GetMembers(), name); m != nil {
					name = memberName(m)
				}
				resp, err := s.RemoveMember(ctx, args[0])
				if err != nil {
					return err
				}
				if s.Cluster != nil {
					if _, err := s.Cluster.Supervisor(name); err == nil {
						if err := s.Cluster.ForgetSupervisor(ctx, name); err != nil {
							return err
						}
					}
				}
				a.Printf("%s is out: %s\n", name, membersLeft(len(resp.GetMembers())))
				warnFragile(a, resp.GetMembers())
				return nil
			})
		},
	}
}

func supervisorSnapshotCommand(a *command.App) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "snapshot FILE",
		Short: "Save the whole store to a file",
		Long: `Saves the whole store to a file, as one replica has it: the fault map, its history and the received reports. The file
appears when it is complete and its checksum is right. The command also works without a quorum, and then prints a
warning.

lofamo-supervisor check --snapshot FILE checks it again, lofamo-supervisor restore uses it.`,
		Args: command.Exactly("FILE"),
	}
	cmd.Flags().BoolVar(&force, "force", false, "overwrite the file")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := mayWrite(args[0], args[0], force); err != nil {
			return err
		}
		return asOperator(a, cmd.Context(), "snapshot", func(ctx context.Context, s command.Session) error {
			return snapshot(a, ctx, s, args[0], force)
		})
	}
	return cmd
}

// snapshot writes beside the file, and gives it its name at the end.
func snapshot(a *command.App, ctx context.Context, s command.Session, path string, force bool) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".lofamo-snapshot-*") // readable by its owner only
	if err != nil {
		return fmt.Errorf("temporary file: %w", err)
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			if rerr := os.Remove(f.Name()); !errors.Is(rerr, fs.ErrNotExist) {
				err = errors.Join(err, rerr)
			}
		}
	}()
	header, size, err := s.Snapshot(ctx, f)
	if err == nil {
		err = errors.Join(f.Sync(), f.Close())
	}
	if err == nil {
		err = giveName(f.Name(), path, force)
	}
	if err != nil {
		return err
	}
	a.Printf("%s: %d bytes, cluster %s, all up to revision %d, from %s\n", path, size, header.GetCluster(), header.GetRevision(),
		header.GetMember())
	if !header.GetConfirmed() {
		a.Warnf("lofamoctl: no quorum: %s may lack the newest changes; compare with the other members' (supervisor list)\n", header.GetMember())
	}
	return nil
}

func supervisorAlarmsCommand(a *command.App) *cobra.Command {
	var disarm bool
	cmd := &cobra.Command{
		Use:   "alarms [NAME]",
		Short: "Show the members' alarms, or disarm them",
		Long: `Shows the alarms of the members: NOSPACE, the store is full and accepts no writes; CORRUPT, a member's data differ.
--disarm ends them when their reason is gone: space was freed, the quota raised, or the member replaced. Without NAME it also withdraws a
false alarm that the store was rolled back.`,
		Example: "  lofamoctl supervisor alarms\n  lofamoctl supervisor defrag --all --compact && lofamoctl supervisor alarms --disarm",
		Args:    command.Between(0, "NAME"),
	}
	cmd.Flags().BoolVar(&disarm, "disarm", false, "clear alarms whose reason is gone")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name := strings.Join(args, "")
		return asOperator(a, cmd.Context(), "alarms", func(ctx context.Context, s command.Session) error {
			if disarm {
				resp, err := s.DisarmAlarms(ctx, name)
				if err != nil {
					return err
				}
				for _, d := range resp.GetDisarmed() {
					a.Printf("disarmed %s\n", d)
				}
				if len(resp.GetDisarmed()) == 0 {
					a.Printf("no alarms\n")
				}
				return nil
			}
			resp, err := s.ListMembers(ctx)
			if err != nil {
				return err
			}
			members := resp.GetMembers()
			if name != "" {
				m := findMember(members, name)
				if m == nil {
					return unknownMember(name, members)
				}
				members = []*lofamov1.Member{m}
			}
			n := 0
			for _, m := range members {
				for _, alarm := range m.GetAlarms() {
					a.Printf("%s of %s: %s of %s used\n", alarm, m.GetName(), mebibytes(m.GetDbBytes()), mebibytes(m.GetQuotaBytes()))
					n++
				}
			}
			switch {
			case resp.GetStale():
				return errors.New("no quorum: alarms are not known")
			case n == 0:
				a.Printf("no alarms\n")
			}
			return nil
		})
	}
	return cmd
}

// memberName returns a member's name, or the id of a member that was not started yet.
func memberName(m *lofamov1.Member) string { return cmp.Or(m.GetName(), m.GetId()) }

// findMember returns the member of that name or id; nil: none.
func findMember(members []*lofamov1.Member, name string) *lofamov1.Member {
	i := slices.IndexFunc(members, func(m *lofamov1.Member) bool { return name == m.GetName() || name == m.GetId() })
	if i < 0 {
		return nil
	}
	return members[i]
}

// unknownMember refuses a name, and lists the members.
func unknownMember(name string, members []*lofamov1.Member) error {
	var known []string
	for _, m := range members {
		known = append(known, memberName(m))
	}
	return command.Usagef("supervisor alarms: member %q: want one of %s", name, strings.Join(known, ", "))
}

func supervisorDefragCommand(a *command.App) *cobra.Command {
	var all, compact bool
	cmd := &cobra.Command{
		Use:   "defrag NAME|--all",
		Short: "Return unused space of the store to the file system",
		Long: `Returns unused space of a member's store to the file system. The member does not answer meanwhile; --all does one
member after the other, the raft leader last. --compact first removes the values of keys at old revisions, which
usually take most of the space. History is not affected: events are separate keys, bounded only by their number, age
and size, so watches and lists of events continue from any revision that is still kept.`,
		Args: command.Between(0, "NAME"),
	}
	cmd.Flags().BoolVar(&all, "all", false, "all members, one after the other")
	cmd.Flags().BoolVar(&compact, "compact", false, "remove the values of keys at old revisions first")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if all == (len(args) > 0) {
			return command.Usagef("supervisor defrag: want either NAME or --all")
		}
		return asOperator(a, cmd.Context(), "defrag", func(ctx context.Context, s command.Session) error {
			names := args
			if all {
				resp, err := s.ListMembers(ctx)
				if err != nil {
					return err
				}
				names = leaderLast(resp.GetMembers())
			}
			for i, name := range names {
				resp, err := s.Defragment(ctx, &lofamov1.DefragmentRequest{Name: name, Compact: compact && i == 0})
				if err != nil {
					return err
				}
				a.Printf("%s: %s before, %s after\n", name, mebibytes(resp.GetBytesBefore()), mebibytes(resp.GetBytesAfter()))
			}
			return nil
		})
	}
	return cmd
}

// leaderLast orders members so that the leader, whose pause disturbs most, comes last.
func leaderLast(members []*lofamov1.Member) []string {
	var names []string
	leader := ""
	for _, m := range members {
		name := m.GetName()
		switch {
		case name == "": // not started: it has no store
		case m.GetRaftLeader():
			leader = name
		default:
			names = append(names, name)
		}
	}
	if leader != "" {
		names = append(names, leader)
	}
	return names
}
