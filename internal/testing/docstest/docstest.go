// Package docstest finds the commands in the documentation, so that tests can compare them with the programs: a renamed
// flag, or a command without a test, fails. It is for tests only, and runs nothing itself.
//
// A command stands in a block: lines indented by four spaces behind an empty line, or between fences of the kind sh or
// console. Two spaces or more after a command, or " #", begin a remark. In prose a command stands in backquotes.
package docstest

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
)

// Programs are this project's command-line programs.
var Programs = []string{"lofamoctl", "lofamo-agent", "lofamo-executor", "lofamo-supervisor"}

// Command is a command as a page gives it.
type Command struct {
	File    string // from the top of the repository
	Line    int    // from 1
	Heading string // heading above it; empty: none
	Text    string // one shell line without its remark
	Prose   bool   // in backquotes: it may be a part of a command
}

// String returns its place and text.
func (c Command) String() string { return fmt.Sprintf("%s:%d: %s", c.File, c.Line, c.Text) }

// Pages are the pages for users: README.md and all of docs except decision records and papers.
func Pages(top string) ([]string, error) {
	pages := []string{"README.md"}
	err := filepath.WalkDir(filepath.Join(top, "docs"), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "adr" || d.Name() == "papers") {
			return fs.SkipDir
		}
		if rel, err := filepath.Rel(top, path); err == nil && strings.HasSuffix(rel, ".md") {
			pages = append(pages, filepath.ToSlash(rel))
		}
		return nil
	})
	return pages, err
}

var (
	heading = regexp.MustCompile(`^#+ +(.*)`)
	span    = regexp.MustCompile("`([^`]+)`")
	fence   = regexp.MustCompile("^ *```+ *(\\w*)")
)

// Read returns the commands of one page in order. Between fences of the kind sh it reads every line, and of the kind
// console those with a prompt. In indented blocks it reads every line whose first word could be a program, and in prose
// those that begin with one of Programs.
func Read(top, page string) ([]Command, error) {
	b, err := os.ReadFile(filepath.Join(top, filepath.FromSlash(page)))
	if err != nil {
		return nil, err
	}
	var out []Command
	at, fenced, indented, empty := "", "", false, true
	for i, line := range strings.Split(string(b), "\n") {
		c := Command{File: page, Line: i + 1, Heading: at}
		m := fence.FindStringSubmatch(line)
		switch {
		case m != nil && fenced == "":
			fenced = "plain"
			if m[1] != "" {
				fenced = m[1]
			}
		case m != nil:
			fenced = ""
		case fenced == "sh" || fenced == "console":
			if text, ok := fencedLine(line, fenced); ok {
				c.Text = text
				out = append(out, c)
			}
		case fenced != "":
		case strings.HasPrefix(line, "    ") && (empty || indented):
			indented = true
			if text, ok := shellLine(line[4:]); ok {
				c.Text = text
				out = append(out, c)
			}
		default:
			indented = false
			if m := heading.FindStringSubmatch(line); m != nil {
				at = m[1]
			}
			for _, m := range span.FindAllStringSubmatch(line, -1) {
				if first, rest, _ := strings.Cut(m[1], " "); rest != "" && slices.Contains(Programs, first) {
					c.Text, c.Prose = m[1], true
					out = append(out, c)
				}
			}
		}
		empty = strings.TrimSpace(line) == ""
	}
	return out, nil
}

// others are other programs' commands in the pages.
var others = []string{"make", "install", "setpriv", "mv", "rm", "cp", "scp", "chown", "chmod", "mkdir", "sed", "echo", "tail", "df",
	"userdel", "journalctl", "dpkg", "rpm", "systemctl", "prometheus", "helm", "kubectl", "export", "apt", "apt-get", "git", "curl", "openssl",
	"etcdctl", "etcdutl", "go", "tar", "ko", "promtool"}

// assignment is the beginning of a line that sets a variable for a command, or stores its output; settings of units,
// which are configuration, have names in mixed case.
var assignment = regexp.MustCompile(`^([A-Z][A-Z0-9_]*|[a-z][a-z0-9_]*)=`)

// saving is the beginning of a line that stores a command's output.
var saving = regexp.MustCompile(`^[a-z][a-z0-9_]*=\$\(`)

// loop is the first or the last line of a loop.
var loop = regexp.MustCompile(`^(for .*; do|done)$`)

// fencedLine returns the command of a line between fences without its remark; false: it has none.
func fencedLine(line, kind string) (string, bool) {
	line, prompt := strings.CutPrefix(strings.TrimSpace(line), "$ ")
	if line == "" || strings.HasPrefix(line, "#") || loop.MatchString(line) || kind == "console" && !prompt {
		return "", false
	}
	return withoutRemark(line), true
}

// shellLine returns the command of a line without its remark; false for a line without a command, such as
// configuration.
func shellLine(line string) (string, bool) {
	line = strings.TrimPrefix(strings.TrimSpace(line), "$ ")
	first, _, _ := strings.Cut(line, " ")
	if !slices.Contains(Programs, first) && !slices.Contains(others, first) && !assignment.MatchString(first) {
		return "", false
	}
	return withoutRemark(line), true
}

// withoutRemark cuts a remark off, after two spaces or " #", outside of quotations.
func withoutRemark(line string) string {
	quote := rune(0)
	for i, r := range line {
		switch {
		case quote != 0:
			if r == quote {
				quote = 0
			}
		case r == '\'' || r == '"':
			quote = r
		case r == ' ' && (strings.HasPrefix(line[i:], "  ") || strings.HasPrefix(line[i:], " #")):
			return line[:i]
		}
	}
	return line
}

// Words returns the words of a simple command as a shell splits them, without variables before it, a variable for its
// output, redirections and the background sign.
func Words(text string) ([]string, error) {
	text = strings.TrimPrefix(text, saving.FindString(text))
	var out []string
	var word strings.Builder
	in, quote := false, rune(0)
	for _, r := range text {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, in = r, true
		case unicode.IsSpace(r) || r == '&' || r == '|' || r == ';' || r == '>' || r == '<':
			if in && (len(out) > 0 || !assignment.MatchString(word.String())) {
				out = append(out, word.String())
			}
			word.Reset()
			if in = false; !unicode.IsSpace(r) {
				return out, nil
			}
		default:
			in = true
			word.WriteRune(r)
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("%s: a quotation has no end", text)
	}
	if in {
		out = append(out, word.String())
	}
	return out, nil
}

// Parse reads words, the program's name first, as the program itself would, and runs nothing: the subcommands and flags
// must exist, the flags' values must be of their kind, and the number of arguments must fit. In prose a command may be
// named without its subcommand and arguments.
func Parse(root *cobra.Command, words []string, prose bool) error {
	cmd, rest, err := root.Find(words[1:])
	if err != nil {
		return err
	}
	if err := cmd.ParseFlags(rest); err != nil {
		// The flags' library handles help itself: only the text of its error is available.
		if err.Error() == "pflag: help requested" || prose && strings.HasPrefix(err.Error(), "flag needs an argument") {
			return nil // the flag exists
		}
		return fmt.Errorf("%s: %w", cmd.CommandPath(), err)
	}
	args := cmd.Flags().Args()
	if isGroup(cmd) {
		if len(args) > 0 {
			return fmt.Errorf("%s has no subcommand %q", cmd.CommandPath(), args[0])
		}
		if !prose {
			return fmt.Errorf("%s wants a subcommand", cmd.CommandPath())
		}
		return nil
	}
	if prose {
		return nil
	}
	if err := cmd.ValidateArgs(args); err != nil {
		return fmt.Errorf("%s: %w", cmd.CommandPath(), err)
	}
	return cmd.ValidateRequiredFlags()
}

// isGroup reports whether a command only holds its subcommands: its usage names them, or it has neither arguments nor
// flags of its own.
func isGroup(cmd *cobra.Command) bool {
	if !cmd.HasSubCommands() {
		return false
	}
	words := strings.FieldsFunc(cmd.Use, func(r rune) bool { return r == ' ' || r == '|' })
	return len(words) == 1 && !cmd.LocalNonPersistentFlags().HasFlags() ||
		slices.ContainsFunc(cmd.Commands(), func(sub *cobra.Command) bool { return slices.Contains(words[1:], sub.Name()) })
}

// T is the used part of testing.T.
type T interface {
	Helper()
	Fatal(args ...any)
	Errorf(format string, args ...any)
}

// Parses checks every command of the pages for a program against that program. root makes a new command tree for each,
// because flags keep their values.
func Parses(t T, top, program string, root func() *cobra.Command) {
	t.Helper()
	pages, err := Pages(top)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, page := range pages {
		commands, err := Read(top, page)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range commands {
			words, err := Words(c.Text)
			if err != nil {
				t.Errorf("%v: %v", c, err)
				continue
			}
			if len(words) == 0 || words[0] != program && "lofamo-"+words[0] != program {
				continue
			}
			found++
			if c.Prose && slices.Contains(words, "…") {
				continue // it means more than one
			}
			if err := Parse(root(), words, c.Prose); err != nil {
				t.Errorf("%v: %v", c, err)
			}
		}
	}
	if found == 0 {
		t.Errorf("no page has a command of %s: the search is wrong", program)
	}
}
