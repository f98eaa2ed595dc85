package policy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// AuditCommand returns `lofamoctl audit`.
func AuditCommand(a *command.App) *cobra.Command {
	req := &lofamov1.ListAuditRequest{}
	var limit uint
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Decisions about responses, with their authors and reasons",
		Long: `Prints the newest decisions, oldest first, or with --from those from a given line on. The audit also has every
decision not to act, once, with its reason.

Each line has a hash that covers the line before it. The command checks the lines that it prints; 'lofamoctl audit
export' keeps all lines in a file, and 'lofamoctl audit verify' checks such a file.`,
		Example: "  lofamoctl audit\n  lofamoctl audit --from 120 --limit 20 -o json\n  lofamoctl audit export -f audit.jsonl\n" +
			"  lofamoctl audit verify -f audit.jsonl",
		Args: cobra.ArbitraryArgs,
	}
	o := command.AddOutputFlag(cmd, command.FormatTable, command.FormatJSON, command.FormatYAML)
	cmd.Flags().Uint64Var(&req.From, "from", 0, "number of the first line (default the newest lines)")
	cmd.Flags().UintVar(&limit, "limit", 100, "maximum number of lines, 1 to 10000")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return command.Usagef("audit %s: want export, verify or nothing", args[0])
		}
		if limit == 0 {
			return command.Usagef("--limit 0: want 1 to %d", command.MaxEvents)
		}
		if err := command.CheckLimit(cmd, limit); err != nil {
			return err
		}
		req.Limit = uint32(limit)
		return a.WithClient(cmd.Context(), func(ctx context.Context, s command.Session) error {
			resp, err := s.ListAudit(ctx, req)
			if err != nil {
				return fmt.Errorf("audit: %w", command.Plain(err))
			}
			var c response.AuditChecker
			bad := checkLines(&c, resp.GetLines())
			if o.Format != command.FormatTable {
				return errors.Join(a.PrintMessage(o.Format, resp), bad)
			}
			if len(resp.GetLines()) == 0 {
				a.Printf("no decision\n")
				return nil
			}
			return errors.Join(a.Table(auditRows(a, resp.GetLines())), bad)
		})
	}
	cmd.AddCommand(auditExportCommand(a), auditVerifyCommand(a))
	return cmd
}

// checkLines checks lines as they came.
func checkLines(c *response.AuditChecker, lines []*lofamov1.AuditLine) error {
	for _, l := range lines {
		if err := c.Check([]byte(l.GetLine())); err != nil {
			return err
		}
	}
	return nil
}

func auditRows(a *command.App, lines []*lofamov1.AuditLine) [][]string {
	rows := [][]string{{"LINE", "TIME", "WHAT", "RESPONSE", "POLICY", "FAULT", "STEP", "BY", "WHY"}}
	for _, l := range lines {
		step := l.GetStep()
		if step != "" && l.GetExecutor() != "" {
			step += " (" + l.GetExecutor() + ")"
		}
		if l.GetAttempt() > 1 {
			step += fmt.Sprintf(" attempt %d", l.GetAttempt())
		}
		why := l.GetReason()
		if l.GetDetail() != "" {
			why = strings.TrimPrefix(why+": "+l.GetDetail(), ": ")
		}
		rows = append(rows, []string{
			strconv.FormatUint(l.GetSeq(), 10), a.Clock(l.GetAt()), l.GetAct(), command.Dash(l.GetResponse()), command.Dash(l.GetPolicy()),
			command.Dash(l.GetTarget()), command.Dash(command.Printable(step)),
			command.Dash(command.Printable(l.GetSubject())), command.Dash(command.Printable(why)),
		})
	}
	return rows
}

func auditExportCommand(a *command.App) *cobra.Command {
	req := &lofamov1.ExportAuditRequest{}
	var file string
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Check the audit and write it to a file, one JSON object a line",
		Long: `Writes the lines of the audit, one JSON object a line, oldest first, and checks each line's hash and that it follows
the line before. It appends to an existing file if the last line of the file agrees with the audit. So the same
command, run every day, keeps the whole audit even when the supervisors drop old lines. It fails if the supervisors'
line with the number of the file's last line differs, or if their newest line has a lower number. Both happen after a
restore from a snapshot: export to a new file. If you store the last hash elsewhere, you can prove later that nothing
was changed.`,
		Example: "  lofamoctl audit export -f audit.jsonl\n  lofamoctl audit export --from 1200 > tail.jsonl\n" +
			"  lofamoctl audit export -f audit.jsonl --follow",
		Args: command.Exactly(),
	}
	cmd.Flags().StringVarP(&file, "filename", "f", "", "the file (default the standard output)")
	cmd.Flags().Uint64Var(&req.From, "from", 0, "number of the first line (default the oldest, or the one after the file's last)")
	cmd.Flags().BoolVar(&req.Follow, "follow", false, "continue with new lines")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var c response.AuditChecker
		out := a.Env.Stdout
		if file != "" {
			if req.GetFrom() > 0 {
				return command.Usagef("-f %s and --from %d: want only one: a file is continued after its last line", file, req.GetFrom())
			}
			f, err := openAudit(file, &c)
			if err != nil {
				return err
			}
			defer func() { _ = f.Close() }()
			out = f
		}
		before := c.Lines()
		return a.WithClient(cmd.Context(), func(ctx context.Context, s command.Session) error {
			if req.GetFollow() {
				defer a.Attend(ctx, s)()
			}
			err := exportAudit(ctx, s, req, &c, out)
			if err != nil && (ctx.Err() == nil || !req.GetFollow()) {
				return fmt.Errorf("audit export: %w", command.Plain(err))
			}
			seq, hash := c.Last()
			a.Warnf("lofamoctl: %s; the last is %d with hash %s\n", fault.Plural(int(c.Lines()-before), "line"), seq, command.Dash(hash))
			return nil
		})
	}
	return cmd
}

// exportAudit writes lines of the audit. If the checker has read lines of a file, it continues after them, and fails unless the audit
// agrees with the last one.
func exportAudit(ctx context.Context, s command.Session, req *lofamov1.ExportAuditRequest, c *response.AuditChecker, out io.Writer) error {
	last, hash := c.Last()
	agrees := last == 0
	each := func(lines []*lofamov1.AuditLine) error {
		for _, l := range lines {
			if !agrees && l.GetSeq() == last {
				var theirs response.AuditChecker
				if err := theirs.Check([]byte(l.GetLine())); err != nil {
					return err
				}
				if _, got := theirs.Last(); got != hash {
					return fmt.Errorf("line %d: the file's last line has hash %.16s, but the supervisors' line has %.16s: export to a new file", last,
						hash, got)
				}
				agrees = true
				continue
			}
			if err := c.Check([]byte(l.GetLine())); err != nil {
				return err
			}
			agrees = true // the line has the hash of the line before
			if _, err := fmt.Fprintln(out, l.GetLine()); err != nil {
				return fmt.Errorf("write the audit: %w", err)
			}
		}
		return nil
	}
	if last > 0 {
		req.From = last
	}
	err := s.ExportAudit(ctx, req, each)
	if !agrees && status.Code(err) == codes.OutOfRange { // the supervisors may have dropped this line, but not the next one
		req.From = last + 1
		err = s.ExportAudit(ctx, req, each)
	}
	if err == nil && !agrees {
		return fmt.Errorf("line %d: it is the file's last line, and the supervisors have none with this number: if their store was restored "+
			"from a snapshot, export to a new file", last)
	}
	return err
}

// openAudit opens a file of lines to append to, and checks its content. It removes an incomplete last line.
func openAudit(file string, c *response.AuditChecker) (*os.File, error) {
	f, err := os.OpenFile(filepath.Clean(file), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, command.Usage(err)
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.Join(command.Usagef("-f %s: want a regular file: its lines are read first", file), err, f.Close())
	}
	whole, rest, err := readAudit(f, c)
	if begins := []byte(`{"seq":`); err == nil && !bytes.HasPrefix(rest, begins[:min(len(begins), len(rest))]) {
		err = fmt.Errorf("after line %d: %.40q is no line of an audit: want another file", c.Lines(), rest)
	}
	if err == nil {
		if err = f.Truncate(whole); err == nil {
			_, err = f.Seek(whole, io.SeekStart)
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return f, nil
}

// readAudit checks lines to the end. It returns the size of the complete ones in bytes, and the incomplete last line, if any.
func readAudit(r io.Reader, c *response.AuditChecker) (whole int64, rest []byte, err error) {
	in := bufio.NewReaderSize(r, response.MaxAuditLine+1)
	for {
		line, err := in.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF):
			return whole, line, nil // an incomplete line was cut off during its write
		case err != nil:
			return whole, nil, fmt.Errorf("after line %d: %w", c.Lines(), err)
		}
		if err := c.Check(line); err != nil {
			return whole, nil, err
		}
		whole += int64(len(line))
	}
}

func auditVerifyCommand(a *command.App) *cobra.Command {
	var file, hash string
	cmd := &cobra.Command{
		Use:   "verify -f FILE",
		Short: "Check an exported audit, without any supervisor",
		Long: `Checks each line's hash, and that each line follows the one before. The exit code is 1 when anything is wrong. With
--hash, the last line must also have the given hash, such as one that was stored elsewhere: an attacker who can write
all lines can forge a chain, but not one with the same last hash. Without --hash, a file without lines is in order: only
the hash can reveal that the last lines, or all lines, were deleted.`,
		Example: "  lofamoctl audit verify -f audit.jsonl",
		Args:    command.Exactly(),
	}
	cmd.Flags().StringVarP(&file, "filename", "f", "", "the file; - for the standard input")
	cmd.Flags().StringVar(&hash, "hash", "", "required hash of the last line")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if file == "" {
			return command.Usagef("-f is missing: want a file with exported lines, or - for the standard input")
		}
		in := cmd.InOrStdin()
		if file != "-" {
			f, err := os.Open(filepath.Clean(file))
			if err != nil {
				return command.Usage(err)
			}
			defer func() { _ = f.Close() }()
			in = f
		}
		var c response.AuditChecker
		_, rest, err := readAudit(in, &c)
		if err != nil {
			return err
		}
		seq, last := c.Last()
		switch {
		case len(rest) > 0:
			return fmt.Errorf("%s: %d bytes after line %d are no whole line: 'audit export -f' replaces a line that was cut off", file,
				len(rest), seq)
		case hash != "" && c.Lines() == 0:
			return fmt.Errorf("%s: no line: want a last line with hash %s", file, hash)
		case hash != "" && hash != last:
			return fmt.Errorf("%s: line %d, the last, has hash %s: want %s", file, seq, last, hash)
		case c.Lines() == 0:
			a.Printf("no lines: nothing to verify\n")
			return nil
		}
		a.Printf("%s in order, %d to %d; the last has hash %s\n", fault.Plural(int(c.Lines()), "line"), seq-c.Lines()+1, seq, last)
		return nil
	}
	return cmd
}
