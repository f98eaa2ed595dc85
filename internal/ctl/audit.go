package ctl

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/response/audit"
)

func (a *app) auditCommand() *cobra.Command {
	req := &lofamov1.ListAuditRequest{}
	var limit uint
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "What was decided about responses, by whom and why",
		Long: `Prints decisions, oldest first: the newest ones, or with --from those from a line on. Every decision not to act is there too,
once, with its reason.

Every line has a hash that covers the line before it. What is printed is checked; 'lofamoctl audit export' keeps all lines
elsewhere, and 'lofamoctl audit verify' checks what was kept.`,
		Example: "  lofamoctl audit\n  lofamoctl audit --from 120 --limit 20 -o json\n  lofamoctl audit export -f audit.jsonl\n  lofamoctl audit verify -f audit.jsonl",
		Args:    cobra.ArbitraryArgs,
	}
	o := addOutputFlag(cmd, formatTable, formatJSON, formatYAML)
	cmd.Flags().Uint64Var(&req.From, "from", 0, "number of the first line (default the newest lines)")
	cmd.Flags().UintVar(&limit, "limit", 100, "at most so many, 1 to 10000")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return usagef("audit %s: want export, verify or nothing", args[0])
		}
		if limit == 0 {
			return usagef("--limit 0: want 1 to %d", maxEvents)
		}
		if err := checkLimit(cmd, limit); err != nil {
			return err
		}
		req.Limit = uint32(limit)
		return a.withClient(cmd.Context(), func(ctx context.Context, s session) error {
			resp, err := s.ListAudit(ctx, req)
			if err != nil {
				return fmt.Errorf("audit: %w", plain(err))
			}
			var c audit.Checker
			bad := checkLines(&c, resp.GetLines())
			if o.format != formatTable {
				return errors.Join(a.printMessage(o.format, resp), bad)
			}
			if len(resp.GetLines()) == 0 {
				a.printf("no decision\n")
				return nil
			}
			return errors.Join(table(a.env.Stdout, a.auditRows(resp.GetLines())), bad)
		})
	}
	cmd.AddCommand(a.auditExportCommand(), a.auditVerifyCommand())
	return cmd
}

// checkLines checks lines as they came.
func checkLines(c *audit.Checker, lines []*lofamov1.AuditLine) error {
	for _, l := range lines {
		if err := c.Check([]byte(l.GetLine())); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) auditRows(lines []*lofamov1.AuditLine) [][]string {
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
			strconv.FormatUint(l.GetSeq(), 10), a.clock(l.GetAt()), l.GetAct(), orDash(l.GetResponse()), orDash(l.GetPolicy()), orDash(l.GetTarget()), orDash(printable(step)),
			orDash(printable(l.GetSubject())), orDash(printable(why)),
		})
	}
	return rows
}

func (a *app) auditExportCommand() *cobra.Command {
	req := &lofamov1.ExportAuditRequest{}
	var file string
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write the audit to a file, a line of JSON each, checked",
		Long: `Writes the lines of the audit as they are kept, one line of JSON each, oldest first, and checks them as they come: each line's hash,
and that it follows the one before. A file that is there is gone on with, after its last line, when that agrees with it; so the same
command, given every day, keeps the whole audit also when the supervisors forget old lines. Whoever keeps the last hash elsewhere
can tell later that nothing was changed.`,
		Example: "  lofamoctl audit export -f audit.jsonl\n  lofamoctl audit export --from 1200 > tail.jsonl\n  lofamoctl audit export -f audit.jsonl --follow",
		Args:    exactly(),
	}
	cmd.Flags().StringVarP(&file, "filename", "f", "", "the file (default the standard output)")
	cmd.Flags().Uint64Var(&req.From, "from", 0, "number of the first line (default the oldest that is kept, or the one after the file's last)")
	cmd.Flags().BoolVar(&req.Follow, "follow", false, "go on with those that come")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var c audit.Checker
		out := a.env.Stdout
		if file != "" {
			if req.GetFrom() > 0 {
				return usagef("-f %s and --from %d: want one of them: a file is gone on with after its last line", file, req.GetFrom())
			}
			f, err := openAudit(file, &c)
			if err != nil {
				return err
			}
			defer func() { _ = f.Close() }()
			out = f
			if seq, _ := c.Last(); seq > 0 {
				req.From = seq + 1
			}
		}
		before := c.Lines()
		return a.withClient(cmd.Context(), func(ctx context.Context, s session) error {
			err := s.ExportAudit(ctx, req, func(lines []*lofamov1.AuditLine) error {
				for _, l := range lines {
					if err := c.Check([]byte(l.GetLine())); err != nil {
						return err
					}
					if _, err := fmt.Fprintln(out, l.GetLine()); err != nil {
						return fmt.Errorf("write the audit: %w", err)
					}
				}
				return nil
			})
			if err != nil && ctx.Err() == nil {
				return fmt.Errorf("audit export: %w", plain(err))
			}
			seq, hash := c.Last()
			a.warnf("lofamoctl: %s; the last is %d with hash %s\n", plural(int(c.Lines()-before), "line"), seq, orDash(hash))
			return nil
		})
	}
	return cmd
}

// openAudit opens a file of lines to go on with it, and checks what is there. A last line that was not written to its end is taken away.
func openAudit(file string, c *audit.Checker) (*os.File, error) {
	f, err := os.OpenFile(filepath.Clean(file), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, usageError{err}
	}
	whole, err := readAudit(f, c)
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

// readAudit checks lines to the end, and returns how many bytes the whole ones have.
func readAudit(r io.Reader, c *audit.Checker) (whole int64, err error) {
	in := bufio.NewReaderSize(r, audit.MaxLine+1)
	for {
		line, err := in.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF):
			return whole, nil // what is not ended was cut off when it was written
		case err != nil:
			return whole, fmt.Errorf("after line %d: %w", c.Lines(), err)
		}
		if err := c.Check(line); err != nil {
			return whole, err
		}
		whole += int64(len(line))
	}
}

func (a *app) auditVerifyCommand() *cobra.Command {
	var file, hash string
	cmd := &cobra.Command{
		Use:   "verify -f FILE",
		Short: "Check an exported audit, without any supervisor",
		Long: `Checks each line's hash, and that each follows the one before. The exit code is 1 when anything is wrong. --hash also wants the
last line to have that hash, such as one that was kept elsewhere: who can write all lines can make a chain of his own, but not
with the same end.`,
		Example: "  lofamoctl audit verify -f audit.jsonl",
		Args:    exactly(),
	}
	cmd.Flags().StringVarP(&file, "filename", "f", "", "the file; - for the standard input")
	cmd.Flags().StringVar(&hash, "hash", "", "that the last line must have")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if file == "" {
			return usagef("-f is missing: want a file with exported lines, or - for the standard input")
		}
		in := cmd.InOrStdin()
		if file != "-" {
			f, err := os.Open(filepath.Clean(file))
			if err != nil {
				return usageError{err}
			}
			defer func() { _ = f.Close() }()
			in = f
		}
		var c audit.Checker
		if _, err := readAudit(in, &c); err != nil {
			return err
		}
		seq, last := c.Last()
		if c.Lines() == 0 {
			return fmt.Errorf("%s: no line: want at least one", file)
		}
		if hash != "" && hash != last {
			return fmt.Errorf("%s: line %d, the last, has hash %s: want %s", file, seq, last, hash)
		}
		a.printf("%s in order, %d to %d; the last has hash %s\n", plural(int(c.Lines()), "line"), seq-c.Lines()+1, seq, last)
		return nil
	}
	return cmd
}
