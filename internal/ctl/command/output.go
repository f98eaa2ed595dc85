package command

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"sigs.k8s.io/yaml"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Some joins the first few of a list.
func Some(all []string, most int) string {
	if len(all) <= most {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:most], ", "), len(all)-most)
}

// AllFormats adds -o with the formats of most commands.
func AllFormats(cmd *cobra.Command) *OutputFlag {
	return AddOutputFlag(cmd, FormatTable, FormatWide, FormatJSON, FormatYAML)
}

// GetFormats adds -o and -w of the commands below get. Without others, -o has all formats.
func GetFormats(cmd *cobra.Command, others ...Format) *OutputFlag {
	if len(others) == 0 {
		others = []Format{FormatTable, FormatWide, FormatJSON, FormatYAML}
	}
	o := AddOutputFlag(cmd, append(others, FormatName)...)
	cmd.Flags().BoolVarP(&o.Watch, "watch", "w", false, "then print each object again when it changes, until Ctrl-C")
	return o
}

// Format is how an answer is printed.
type Format string

// The formats of -o.
const (
	FormatTable Format = "table"
	FormatWide  Format = "wide"
	FormatJSON  Format = "json"
	FormatYAML  Format = "yaml"
	FormatName  Format = "name" // KIND/NAME of each object
)

// pathPrefix begins a format that has a template: jsonpath={.nodes[*].id}.
const pathPrefix = "jsonpath="

// Structured reports whether the format prints the API's own messages for programs, whole or in part.
func (f Format) Structured() bool {
	return f == FormatJSON || f == FormatYAML || f == FormatName || f.template() != ""
}

// template returns the template of a jsonpath format, or "".
func (f Format) template() string {
	t, _ := strings.CutPrefix(string(f), pathPrefix)
	if t == string(f) {
		return ""
	}
	return t
}

// Query asks the supervisors once and prints the answer: as JSON or YAML if o selects that, otherwise by text. It warns
// if the answer is stale, and follows the changes if o has -w. Its error begins with what.
func Query[M proto.Message](a *App, cmd *cobra.Command, what string, o *OutputFlag, ask func(context.Context, Session) (M, error),
	text func(M) error) error {
	return a.WithClient(cmd.Context(), func(ctx context.Context, s Session) error {
		answer, err := ask(ctx, s)
		if err != nil {
			return fmt.Errorf("%s: %w", what, Plain(err))
		}
		warnAnswer(a, answer)
		if o.Watch {
			return follow(a, ctx, s, what, o, answer, ask, text)
		}
		return Show(a, o, answer, text)
	})
}

// Show prints an answer: as JSON or YAML if o selects that, otherwise by text.
func Show[M proto.Message](a *App, o *OutputFlag, answer M, text func(M) error) error {
	if o.Format.Structured() {
		return o.print(a, answer)
	}
	return text(answer)
}

// OutputFlag is the -o flag of a command, restricted to the formats of the command.
type OutputFlag struct {
	Format Format
	Watch  bool // -w: print changes as well
	// JSON returns an answer as JSON, for a command that does not print the API's own message. Nil: protobuf JSON.
	JSON    func(proto.Message) ([]byte, error)
	allowed []Format
}

// json returns an answer as JSON.
func (o *OutputFlag) json(m proto.Message) ([]byte, error) {
	if o.JSON != nil {
		return o.JSON(m)
	}
	return ProtoJSON(m)
}

// print prints an answer in a machine-readable format.
func (o *OutputFlag) print(a *App, m proto.Message) error {
	if o.Format == FormatName {
		return a.printNames(m)
	}
	b, err := o.json(m)
	if err != nil {
		return err
	}
	return a.PrintJSON(o.Format, b)
}

// AddOutputFlag adds -o with these formats. The first is the default.
func AddOutputFlag(cmd *cobra.Command, allowed ...Format) *OutputFlag {
	o := &OutputFlag{Format: allowed[0], allowed: allowed}
	cmd.Flags().VarP(o, "output", "o", "format of the output: "+o.names())
	_ = cmd.RegisterFlagCompletionFunc("output", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return strings.Split(o.names(), ", "), cobra.ShellCompDirectiveNoFileComp
	})
	return o
}

func (o *OutputFlag) names() string {
	var s []string
	for _, f := range o.allowed {
		s = append(s, string(f))
	}
	if o.paths() {
		s = append(s, pathPrefix+"TEMPLATE")
	}
	return strings.Join(s, ", ")
}

// paths reports whether -o takes a template, as in all commands whose answer is one message.
func (o *OutputFlag) paths() bool { return slices.Contains(o.allowed, FormatYAML) }

// String, Set and Type implement pflag.Value.
func (o *OutputFlag) String() string { return string(o.Format) }

// Type names the flag's values in help texts.
func (o *OutputFlag) Type() string { return "format" }

// Set rejects a format that the command does not have.
func (o *OutputFlag) Set(s string) error {
	f := Format(s)
	switch {
	case o.paths() && strings.HasPrefix(s, pathPrefix):
		if _, err := parsePath(f.template()); err != nil {
			return err
		}
	case !slices.Contains(o.allowed, f):
		return fmt.Errorf("want one of %s", o.names())
	}
	o.Format = f
	return nil
}

// ProtoJSON is protobuf JSON including default values: a state or a list is always present, and unknown values (a
// latency, an age) are absent.
func ProtoJSON(m proto.Message) ([]byte, error) {
	b, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("print answer: %w", err)
	}
	// protojson's white space is not stable on purpose; ours is.
	var out bytes.Buffer
	if err := json.Compact(&out, b); err != nil {
		return nil, fmt.Errorf("print answer: %w", err)
	}
	return out.Bytes(), nil
}

// PrintMessage prints an API message in a machine-readable format.
func (a *App) PrintMessage(f Format, m proto.Message) error {
	return (&OutputFlag{Format: f}).print(a, m)
}

// Documents separates the answers that a watch prints one after the other.
type Documents struct {
	Format Format
	Long   bool // each text for people has many lines
	begun  bool
}

// Next prints the separator between the previous answer, if there is one, and the next one: "---" in YAML, and an empty
// line between long texts.
func (d *Documents) Next(a *App) {
	switch {
	case !d.begun:
	case d.Format == FormatYAML:
		a.Printf("---\n")
	case d.Long && !d.Format.Structured():
		a.Printf("\n")
	}
	d.begun = true
}

// PrintJSON prints JSON, indented, as YAML, or the parts that a template selects.
func (a *App) PrintJSON(f Format, b []byte) error {
	var out bytes.Buffer
	if t := f.template(); t != "" {
		return a.printPath(t, b)
	}
	if f == FormatYAML {
		y, err := yaml.JSONToYAML(b)
		if err != nil {
			return fmt.Errorf("print answer: %w", err)
		}
		out.Write(y)
	} else {
		if err := json.Indent(&out, b, "", "  "); err != nil {
			return fmt.Errorf("print answer: %w", err)
		}
		out.WriteByte('\n')
	}
	_, err := a.Env.Stdout.Write(out.Bytes())
	return err
}

// Table prints rows in columns on the standard output. In a terminal, the widest column is cut so that lines fit.
func (a *App) Table(rows [][]string) error {
	if a.Env.Terminal && a.Env.Width > 0 {
		rows = fit(rows, a.Env.Width)
	}
	return Table(a.Env.Stdout, rows)
}

// List prints a list like App.Table. Without any row below the heading it says on standard error that nothing matches, as kubectl does.
func (a *App) List(what string, rows [][]string) error {
	if len(rows) <= 1 {
		a.Warnf("no %s match\n", what)
		return nil
	}
	return a.Table(rows)
}

// Columns of tables.
const (
	columnGap   = 2  // spaces between two columns
	leastColumn = 16 // characters that the cut column keeps
)

// fit cuts the cells of the widest column until lines have the given width, as far as leastColumn and the column's heading allow.
func fit(rows [][]string, width int) [][]string {
	var widths []int
	for _, r := range rows {
		for i, cell := range r {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	line := -columnGap
	for _, w := range widths {
		line += w + columnGap
	}
	if line <= width {
		return rows
	}
	widest := slices.Index(widths, slices.Max(widths))
	keep := max(widths[widest]-(line-width), leastColumn, utf8.RuneCountInString(rows[0][widest]))
	out := make([][]string, len(rows))
	for i, r := range rows {
		if out[i] = slices.Clone(r); widest < len(r) && utf8.RuneCountInString(r[widest]) > keep {
			out[i][widest] = string([]rune(r[widest])[:keep-1]) + "…"
		}
	}
	return out
}

// Table prints rows in columns; the first is the heading. Each cell is made Printable.
func Table(w io.Writer, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, r := range rows {
		// The last cell has no tab, so that lines have no spaces at their end.
		cells := make([]string, len(r))
		for i, cell := range r {
			cells[i] = Printable(cell)
		}
		if _, err := fmt.Fprintln(tw, strings.Join(cells, "\t")); err != nil {
			return err
		}
	}
	return tw.Flush()
}

// Dash replaces a missing value.
func Dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// StateName returns the name of a state, or "-" for none.
func StateName(s lofamov1.State) string {
	if s == lofamov1.State_STATE_UNSPECIFIED {
		return "-"
	}
	return s.String()
}

// CauseName returns the name of a cause, or "-" for none.
func CauseName(c lofamov1.Cause) string {
	if c == lofamov1.Cause_CAUSE_UNSPECIFIED || c == lofamov1.Cause_NONE {
		return "-"
	}
	return c.String()
}

// PathName returns the name of a path, or "-" for none.
func PathName(p lofamov1.Path) string {
	if p == lofamov1.Path_PATH_UNSPECIFIED {
		return "-"
	}
	return p.String()
}

// Duration prints with about three digits: 85ms, 1.25s, 12s, 3m5s, 2d4h.
func Duration(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < 100*time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 10*time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d < time.Hour:
		return strings.TrimSuffix(d.Round(time.Second).String(), "m0s") + minuteSuffix(d)
	case d < 24*time.Hour:
		d = d.Round(time.Minute)
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	default:
		d = d.Round(time.Hour)
		return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
	}
}

// minuteSuffix gives back the "m" that trimming "m0s" took.
func minuteSuffix(d time.Duration) string {
	if d.Round(time.Second)%time.Minute == 0 {
		return "m"
	}
	return ""
}

// ProtoDuration prints a duration like Duration, or "-" for none.
func ProtoDuration(d *durationpb.Duration) string {
	if d == nil {
		return "-"
	}
	return Duration(d.AsDuration())
}

// Since prints the time since a moment.
func (a *App) Since(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return Duration(a.Env.Now().Sub(t.AsTime()))
}

// Clock prints a time of day, with the date when it is not today's.
func (a *App) Clock(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	at, now := t.AsTime().In(a.Env.Location), a.Env.Now().In(a.Env.Location)
	if at.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return at.Format("15:04:05.000")
	}
	return at.Format("2006-01-02 15:04:05.000")
}

// Until formats the end of a wait: the time of day, and the time left if the end is in the future.
func (a *App) Until(t *timestamppb.Timestamp) string {
	left := t.AsTime().Sub(a.Env.Now())
	if t == nil || left <= 0 {
		return "until " + a.Clock(t)
	}
	if left > time.Second {
		left = left.Round(time.Second)
	}
	return "until " + a.Clock(t) + ", in " + Duration(left)
}

// Count prints a number.
func Count[N uint32 | uint64](n N) string { return strconv.FormatUint(uint64(n), 10) }

// Printable removes characters that would move the cursor from text of the network.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return '·'
		}
		return r
	}, s)
}

// PrintableLines is Printable for a text of several lines.
func PrintableLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		lines[i] = Printable(line)
	}
	return strings.Join(lines, "\n")
}
