package ctl

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"sigs.k8s.io/yaml"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// format is how an answer is printed.
type format string

const (
	formatTable format = "table"
	formatWide  format = "wide"
	formatJSON  format = "json"
	formatYAML  format = "yaml"
)

// outputFlag is the -o flag of a command, restricted to what the command can print.
type outputFlag struct {
	format  format
	allowed []format
}

func addOutputFlag(cmd *cobra.Command, allowed ...format) *outputFlag {
	o := &outputFlag{format: allowed[0], allowed: allowed}
	cmd.Flags().VarP(o, "output", "o", "how to print the answer: "+o.names())
	_ = cmd.RegisterFlagCompletionFunc("output", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return strings.Split(o.names(), ", "), cobra.ShellCompDirectiveNoFileComp
	})
	return o
}

func (o *outputFlag) names() string {
	var s []string
	for _, f := range o.allowed {
		s = append(s, string(f))
	}
	return strings.Join(s, ", ")
}

// String, Set and Type make it a flag.
func (o *outputFlag) String() string { return string(o.format) }

// Type names the flag's values in help texts.
func (o *outputFlag) Type() string { return "format" }

// Set refuses what the command cannot print.
func (o *outputFlag) Set(s string) error {
	if !slices.Contains(o.allowed, format(s)) {
		return fmt.Errorf("want one of %s", o.names())
	}
	o.format = format(s)
	return nil
}

// protoJSON is protobuf JSON with the default values in it: a state or a list is always there,
// while what is unknown (a latency, an age) is absent.
func protoJSON(m proto.Message) ([]byte, error) {
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

// printMessage prints an API message in one of the machines' formats.
func (a *app) printMessage(f format, m proto.Message) error {
	b, err := protoJSON(m)
	if err != nil {
		return err
	}
	return a.printJSON(f, b)
}

func (a *app) printJSON(f format, b []byte) error {
	var out bytes.Buffer
	if f == formatYAML {
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
	_, err := a.env.Stdout.Write(out.Bytes())
	return err
}

// table prints rows in columns; the first is the heading.
func table(w io.Writer, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, r := range rows {
		// The last cell has no tab, so that lines have no spaces at their end.
		if _, err := fmt.Fprintln(tw, strings.Join(r, "\t")); err != nil {
			return err
		}
	}
	return tw.Flush()
}

// dash stands for what is not there.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func stateName(s lofamov1.State) string {
	if s == lofamov1.State_STATE_UNSPECIFIED {
		return "-"
	}
	return s.String()
}

func causeName(c lofamov1.Cause) string {
	if c == lofamov1.Cause_CAUSE_UNSPECIFIED || c == lofamov1.Cause_NONE {
		return "-"
	}
	return c.String()
}

func pathName(p lofamov1.Path) string {
	if p == lofamov1.Path_PATH_UNSPECIFIED {
		return "-"
	}
	return p.String()
}

// duration prints with about three digits: 85ms, 1.25s, 12s, 3m5s, 2d4h.
func duration(d time.Duration) string {
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

func protoDuration(d *durationpb.Duration) string {
	if d == nil {
		return "-"
	}
	return duration(d.AsDuration())
}

// since prints how long ago something was.
func (a *app) since(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return duration(a.env.Now().Sub(t.AsTime()))
}

// clock prints a time of day, with the date when it is not today's.
func (a *app) clock(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	at, now := t.AsTime().In(a.env.Location), a.env.Now().In(a.env.Location)
	if at.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return at.Format("15:04:05.000")
	}
	return at.Format("2006-01-02 15:04:05.000")
}
