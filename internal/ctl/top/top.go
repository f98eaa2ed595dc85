// Package top is `lofamoctl top`: the whole cluster, live in the terminal. The model is a pure function of messages and
// keys; the shell beside it asks the supervisors.
package top

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/ctl/get"
)

type topFlags struct {
	once          bool
	colour        string
	filter        string
	width, height int
}

// defaultHeight is the height of a frame without a terminal.
const defaultHeight = 40

// Command returns `lofamoctl top`.
func Command(a *command.App) *cobra.Command {
	var f topFlags
	cmd := &cobra.Command{
		Use:   "top",
		Short: "A live view of the cluster in the terminal",
		Long: `Shows the cluster live: counts, the parts that are not NORMAL with the worst first, the map, changes as they are
committed, and responses to faults. Press ? for the keys, q to leave.

Enter explains the state of a node, a group or a response. Press a to approve and d to deny a response that waits for
a person, as with 'lofamoctl response': both ask for confirmation. Without a terminal, or with --once, it prints one
frame.

If its supervisor fails, it shows LOST and continues with another one.`,
		Example: "  lofamoctl top\n  lofamoctl top --filter rack=r7\n  lofamoctl top --once --width 120 --height 50",
		Args:    command.Exactly(),
	}
	fl := cmd.Flags()
	fl.BoolVar(&f.once, "once", false, "print one frame and exit")
	fl.StringVar(&f.filter, "filter", "", "only rows with this text, as with /")
	fl.IntVar(&f.width, "width", 0, fmt.Sprintf("width of the one frame in columns, %d to 1000 (default: the terminal's, else %d)",
		topLeastWidth, get.DefaultWidth))
	fl.IntVar(&f.height, "height", 0, fmt.Sprintf("height of the one frame in lines, %d to 1000 (default %d)", topLeastHeight, defaultHeight))
	command.AddColorFlag(cmd, &f.colour)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		p, err := a.Painter(f.colour)
		if err != nil {
			return err
		}
		for _, of := range []struct {
			flag           string
			is, least, def int
		}{{"width", f.width, topLeastWidth, get.DefaultWidth}, {"height", f.height, topLeastHeight, defaultHeight}} {
			if cmd.Flags().Changed(of.flag) && (of.is < of.least || of.is > 1000) {
				return command.Usagef("--%s %d: want %d to 1000", of.flag, of.is, of.least)
			}
		}
		return a.WithClient(cmd.Context(), func(ctx context.Context, s command.Session) error { return top(a, ctx, s, f, p) })
	}
	return cmd
}

func top(a *command.App, ctx context.Context, s command.Session, f topFlags, p command.Painter) error {
	size := topSize{f.width, f.height}
	if size.width == 0 {
		if size.width = a.Env.Width; size.width < topLeastWidth {
			size.width = get.DefaultWidth
		}
	}
	if size.height == 0 {
		size.height = defaultHeight
	}
	m := newTopModel(a, p, size)
	m.filter = f.filter
	t := &topShell{app: a, s: s}
	loaded, err := t.load(ctx)
	if err != nil {
		return fmt.Errorf("top: %w", command.Plain(err))
	}
	if _, err := get.NewMap(loaded.nodes, loaded.links); err != nil {
		return fmt.Errorf("top: %w", err)
	}
	m.update(loaded)
	if f.once || !a.Env.Terminal {
		return topOnce(a, ctx, t, m)
	}
	return t.run(ctx, m)
}

// topOnce prints one frame.
func topOnce(a *command.App, ctx context.Context, t *topShell, m *topModel) error {
	m.update(topProgress{target: t.s.Answered()})
	list, err := t.s.ListResponses(ctx, &lofamov1.ListResponsesRequest{})
	m.update(topResponses{resp: &lofamov1.WatchResponsesResponse{Responses: list.GetResponses(), Breaker: list.GetBreaker()}, err: err})
	if list, err := t.s.AllIncidents(ctx, &lofamov1.ListIncidentsRequest{States: onlyOpen}, incidentChunk); err == nil {
		m.update(topIncidents{changed: list.GetIncidents()})
	}
	for line := range strings.SplitSeq(m.view(), "\n") {
		a.Printf("%s\n", strings.TrimRight(line, " "))
	}
	return nil
}

// topShell queries the supervisors for the model, and passes it their answers.
type topShell struct {
	app  *command.App
	s    command.Session
	send func(any) // to the model; it may be called from any goroutine

	mu            sync.Mutex         // guards the fields below
	move          context.CancelFunc // ends the present watch, so that it restarts
	moveResponses context.CancelFunc // and that of the responses
	moveIncidents context.CancelFunc // and that of the incidents
	again         bool               // with everything listed
}

// Times of the shell.
const (
	topPollEvery = 2 * time.Second // check for a leader: one small query
	topTickEvery = time.Second     // ages grow
	topRetry     = time.Second     // between two tries
)

// load lists everything.
func (t *topShell) load(ctx context.Context) (topLoaded, error) {
	var l topLoaded
	var err error
	if l.nodes, err = t.s.AllNodes(ctx, &lofamov1.ListNodesRequest{Brief: true}, 0); err != nil {
		return l, err
	}
	if l.links, err = t.s.AllLinks(ctx, &lofamov1.ListLinksRequest{Brief: true}, 0); err != nil {
		return l, err
	}
	odd, err := t.s.AllNodes(ctx, &lofamov1.ListNodesRequest{NotNormal: true}, 0)
	if err != nil {
		return l, err
	}
	l.odd = odd.GetNodes()
	groups, err := t.s.ListGroups(ctx, &lofamov1.ListGroupsRequest{})
	if err != nil {
		return l, err
	}
	l.groups = groups.GetGroups()
	events, err := t.s.ListEvents(ctx, &lofamov1.ListEventsRequest{Limit: topEvents})
	if err != nil {
		return l, err
	}
	// The watch repeats changes that were committed after the lists were made.
	for _, e := range events.GetEvents() {
		if e.GetRevision() <= l.nodes.GetRevision() {
			l.events = append(l.events, e)
		}
	}
	return l, nil
}

// run shows the model in the terminal until the person leaves.
func (t *topShell) run(ctx context.Context, m *topModel) error {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	program := tea.NewProgram(&topProgram{shell: t, ctx: ctx, model: m}, tea.WithContext(ctx), tea.WithoutSignalHandler(),
		tea.WithOutput(t.app.Env.Stdout))
	t.send = func(msg any) { program.Send(msg) }
	after := m.revision
	for _, f := range []func(context.Context){func(ctx context.Context) { t.watch(ctx, after) }, t.poll, t.contact, t.responses, t.incidents,
		t.tick} {
		group.Go(func() { f(ctx) })
	}
	if _, err := program.Run(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("top: %w", err)
	}
	return nil // the person has seen enough
}

// watch passes on changes. If it cannot resume, it lists everything again.
func (t *topShell) watch(ctx context.Context, after uint64) {
	for ctx.Err() == nil {
		watching, cancel := context.WithCancel(ctx)
		t.mu.Lock()
		t.move = cancel
		t.mu.Unlock()
		err := t.s.Watch(watching, client.WatchOptions{After: after,
			Progress: func(target string, err error) { t.send(topProgress{target, err}) }}, func(r *lofamov1.WatchResponse) error {
			after = max(after, r.GetRevision())
			t.send(topWatched{r})
			return nil
		})
		moved := watching.Err() != nil
		cancel()
		t.mu.Lock()
		again := t.again || !moved // a watch ends by itself only when it cannot be resumed
		t.again = false
		t.mu.Unlock()
		if err != nil && !moved {
			t.send(topProgress{err: err})
			_ = command.Pause(ctx, topRetry)
		}
		for again && ctx.Err() == nil {
			loaded, err := t.load(ctx)
			if err == nil {
				after, again = loaded.nodes.GetRevision(), false
				t.send(loaded)
				continue
			}
			t.send(topProgress{err: err})
			_ = command.Pause(ctx, topRetry)
		}
	}
}

// poll asks for the leader and for staleness, which a watch does not report.
func (t *topShell) poll(ctx context.Context) {
	for ctx.Err() == nil {
		resp, err := t.s.GetSummary(ctx, &lofamov1.GetSummaryRequest{})
		t.send(topPolled{target: t.s.Answered(), cluster: resp.GetCluster(), revision: resp.GetRevision(), err: err})
		_ = command.Pause(ctx, topPollEvery)
	}
}

// contact tells the model when no supervisor answers. A poll may wait longer for a dead machine.
func (t *topShell) contact(ctx context.Context) {
	t.s.Contact(ctx, func(c client.Contact) {
		if c.Lost {
			t.send(topPolled{err: fmt.Errorf("silent: %s", strings.Join(t.s.Targets(), ", "))})
		}
	})
}

func (t *topShell) responses(ctx context.Context) {
	for ctx.Err() == nil {
		watching, cancel := context.WithCancel(ctx)
		t.mu.Lock()
		t.moveResponses = cancel
		t.mu.Unlock()
		err := t.s.WatchResponses(watching, &lofamov1.ListResponsesRequest{}, func(r *lofamov1.WatchResponsesResponse, anew bool) error {
			t.send(topResponses{resp: r, anew: anew})
			return nil
		})
		moved := watching.Err() != nil
		cancel()
		if moved {
			continue
		}
		if err != nil {
			t.send(topResponses{err: command.Plain(err)})
		}
		_ = command.Pause(ctx, topRetry)
	}
}

// onlyOpen are the states of the incidents in the header.
var onlyOpen = []lofamov1.IncidentState{lofamov1.IncidentState_OPEN}

// incidentChunk is the number of incidents in one page.
const incidentChunk = 500

// incidents passes on the OPEN incidents, and the ids of those that are no longer OPEN. If the supervisors do not serve
// incidents, like those of earlier versions, it retries, and the header shows none.
func (t *topShell) incidents(ctx context.Context) {
	for ctx.Err() == nil {
		watching, cancel := context.WithCancel(ctx)
		t.mu.Lock()
		t.moveIncidents = cancel
		t.mu.Unlock()
		anew := true
		err := t.s.WatchIncidents(watching, &lofamov1.WatchIncidentsRequest{States: onlyOpen}, func(r *lofamov1.WatchIncidentsResponse) error {
			t.send(topIncidents{changed: r.GetIncidents(), gone: r.GetGone(), anew: anew})
			anew = false
			return nil
		})
		moved := watching.Err() != nil
		cancel()
		if err != nil && !moved {
			_ = command.Pause(ctx, topRetry)
		}
	}
}

func (t *topShell) tick(ctx context.Context) {
	for ctx.Err() == nil {
		t.send(topTick{t.app.Env.Now()})
		_ = command.Pause(ctx, topTickEvery)
	}
}

// restart restarts the watch at the supervisor that answered last. With again, everything is listed again; otherwise
// the supervisor is another one, and the watch of responses restarts too.
func (t *topShell) restart(again bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.again = t.again || again
	if t.move != nil {
		t.move()
	}
	if !again && t.moveResponses != nil {
		t.moveResponses()
	}
	if !again && t.moveIncidents != nil {
		t.moveIncidents()
	}
}

// nodes asks for some nodes.
func (t *topShell) nodes(ctx context.Context, ids []string) topNodes {
	out := topNodes{asked: ids}
	for _, id := range ids {
		n, err := t.s.GetNode(ctx, id)
		if err != nil {
			out.nodes, out.err = nil, err
			return out
		}
		out.nodes = append(out.nodes, n)
	}
	return out
}

func (t *topShell) odd(ctx context.Context, dirty []string) topNodes {
	resp, err := t.s.AllNodes(ctx, &lofamov1.ListNodesRequest{NotNormal: true}, 0)
	return topNodes{asked: dirty, odd: true, nodes: resp.GetNodes(), err: err}
}

// printed returns a command's output.
func (t *topShell) printed(do func(a *command.App) error) (string, error) {
	var b strings.Builder
	a := *t.app
	a.Env.Stdout = &b
	err := do(&a)
	return b.String(), err
}

// detail fetches the details of a row, in the form of `lofamoctl explain` and `lofamoctl get`.
func (t *topShell) detail(ctx context.Context, key string) topDetail {
	kind, id, _ := strings.Cut(key, "/")
	text, err := t.printed(func(a *command.App) error {
		switch kind {
		case "response":
			r, err := t.s.GetResponse(ctx, id)
			if err != nil {
				return err
			}
			return command.PrintResponse(a, r)
		case "group":
			e, err := t.s.Explain(ctx, &lofamov1.ExplainRequest{Group: id})
			if err != nil {
				return err
			}
			return command.PrintExplanation(a, e)
		}
		e, err := t.s.Explain(ctx, &lofamov1.ExplainRequest{Node: id})
		if err != nil {
			return err
		}
		if err := command.PrintExplanation(a, e); err != nil {
			return err
		}
		n, err := t.s.GetNode(ctx, id)
		if err != nil {
			return err
		}
		a.Printf("\n")
		return command.PrintNode(a, n, false)
	})
	if err != nil {
		err = command.Plain(err)
	}
	return topDetail{key: key, text: text, err: err}
}

// word sends the person's decision about a response, with the same certificate as `lofamoctl response`.
func (t *topShell) word(ctx context.Context, w topWord) topActed {
	var r *lofamov1.Response
	with := t.app.WithOperator
	say := func(ctx context.Context, s command.Session) error {
		resp, err := s.DenyResponse(ctx, &lofamov1.DenyResponseRequest{Id: w.id, Reason: w.reason})
		r = resp.GetResponse()
		return err
	}
	if w.approve {
		with = t.app.WithApprover
		say = func(ctx context.Context, s command.Session) error {
			resp, err := s.ApproveResponse(ctx, &lofamov1.ApproveResponseRequest{Id: w.id, Reason: w.reason})
			r = resp.GetResponse()
			return err
		}
	}
	if err := with(ctx, say); err != nil {
		return topActed{err: command.Plain(err)}
	}
	text, err := t.printed(func(a *command.App) error { command.PrintWord(a, r); return nil })
	return topActed{text: strings.TrimSpace(text), err: err}
}

// topProgram fits the model to the terminal library.
type topProgram struct {
	shell *topShell
	ctx   context.Context //nolint:containedctx // the library calls without one
	model *topModel
}

// Init implements tea.Model.
func (p *topProgram) Init() tea.Cmd { return nil }

// Update implements tea.Model.
func (p *topProgram) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch x := msg.(type) {
	case tea.KeyPressMsg:
		msg = topKey{name: x.Keystroke(), text: x.Text}
		if x.Text != "" && x.Text != " " {
			msg = topKey{name: x.Text, text: x.Text} // "?" and "G", whatever keys made them
		}
	case tea.PasteMsg:
		msg = topKey{text: x.Content}
	case tea.WindowSizeMsg:
		msg = topSize{x.Width, x.Height}
	}
	var cmds []tea.Cmd
	for _, effect := range p.model.update(msg) {
		cmds = append(cmds, p.do(effect))
	}
	return p, tea.Batch(cmds...)
}

// View implements tea.Model.
func (p *topProgram) View() tea.View {
	v := tea.NewView(p.model.view())
	v.AltScreen = true
	v.WindowTitle = "lofamoctl top"
	return v
}

// do carries an effect out.
func (p *topProgram) do(effect any) tea.Cmd {
	t, ctx := p.shell, p.ctx
	switch e := effect.(type) {
	case topQuit:
		return tea.Quit
	case askNodes:
		return func() tea.Msg { return t.nodes(ctx, e.ids) }
	case askOdd:
		return func() tea.Msg { return t.odd(ctx, e.dirty) }
	case askDetail:
		return func() tea.Msg { return t.detail(ctx, e.key) }
	case sayWord:
		return func() tea.Msg { return t.word(ctx, e.word) }
	case askAgain:
		t.restart(true)
	case askElsewhere:
		t.restart(false)
	}
	return nil
}
