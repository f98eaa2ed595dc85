package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/spf13/cobra"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/pki"
)

// maxBundle is the most that a bundle may have, in bytes.
const maxBundle = 64 << 20

type bundleFlags struct {
	half   string
	output string
	force  bool
	most   uint64
}

// BundleCommand returns `lofamoctl bundle`.
func BundleCommand(a *command.App) *cobra.Command {
	f := &bundleFlags{}
	cmd := &cobra.Command{
		Use:   "bundle NODE",
		Short: "Fetch a diagnostic bundle from a node, even when only the torus reaches it",
		Long: `Fetches a diagnostic bundle from a node and writes it to a file: a gzipped tar archive with the registers and their
history, configuration without keys, the delivery of the node's reports, metrics, versions, logs, the kernel's log,
load, memory and interfaces. MANIFEST.txt in it lists everything that was left out or cut, with the reason.

The supervisor asks the node directly, and if that fails through the node's neighbours; it changes the path during the
transfer if necessary. Through the torus some 250 kB arrive a second. A transfer ends when nothing has arrived by any
path for 30 seconds.

Limits: a bundle has at most 64 MiB; a node gathers for at most 10 seconds and serves 2 transfers at once, a
supervisor 4. Roles operator and supervisor may fetch bundles; in a local cluster the command uses the operator's
certificate.

Without -o the file has the name that the node gives the bundle, in the current directory. It appears when it is
complete and its checksum is right. An existing file is overwritten only with --force.`,
		Example: "  lofamoctl bundle 1,0,1\n  lofamoctl bundle n1-0-1 --half dnp -o dnp.tar.gz\n" +
			"  lofamoctl bundle n1-0-1 -o - | tar tzv",
		Args:              command.Exactly("NODE (an id such as n1-0-1, or coordinates such as 1,0,1)"),
		ValidArgsFunction: a.CompleteFirstNode,
	}
	fl := cmd.Flags()
	fl.StringVar(&f.half, "half", "host", "which half gathers the bundle: host or dnp")
	fl.StringVarP(&f.output, "output", "o", "", "file to write, - for standard output (default: as the node calls it)")
	fl.BoolVar(&f.force, "force", false, "overwrite the file")
	fl.Uint64Var(&f.most, "max-bytes", maxBundle, "most that the bundle may have, in bytes: 65536 to 67108864")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if f.half != "host" && f.half != "dnp" {
			return command.Usagef("--half %q: want host or dnp", f.half)
		}
		if f.most < 64<<10 || f.most > maxBundle {
			return command.Usagef("--max-bytes %d: want 65536 to %d", f.most, maxBundle)
		}
		s, err := a.ConnectAs(pki.RoleOperator)
		if err != nil {
			return err
		}
		defer func() { _ = s.Close() }()
		return s.AddHint(bundle(a, cmd.Context(), s, args[0], f))
	}
	return cmd
}

// bundle fetches a bundle into a temporary file and gives that its name at the end.
func bundle(a *command.App, ctx context.Context, s command.Session, node string, f *bundleFlags) error {
	w := &bundleWriter{App: a, flags: f, began: a.Env.Now()}
	if err := w.open(); err != nil {
		return err
	}
	req := &lofamov1.GetBundleRequest{Node: node, Half: f.half, MaxBytes: f.most}
	err := s.GetBundle(ctx, req, w.handle)
	w.endProgress()
	if err != nil {
		return errors.Join(fmt.Errorf("bundle of node %s: %w", node, command.Plain(err)), w.discard())
	}
	if err := w.finish(); err != nil {
		return errors.Join(fmt.Errorf("bundle of node %s: %w", node, err), w.discard())
	}
	return nil
}

// bundleName matches the names that nodes give.
var bundleName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,150}\.tar\.gz$`)

// bundleWriter takes a bundle down as it comes.
type bundleWriter struct {
	*command.App
	flags    *bundleFlags
	began    time.Time
	file     *os.File // nil: standard output
	received uint64
	progress *lofamov1.BundleProgress
	shown    time.Time
	width    int // of the line of progress
}

func (w *bundleWriter) toStdout() bool { return w.flags.output == "-" }

// open creates the temporary file beside the target, so that it can be renamed. If the name is known, an existing
// target is found before any request.
func (w *bundleWriter) open() error {
	if w.toStdout() {
		return nil
	}
	if w.flags.output != "" {
		if err := mayWrite("-o "+w.flags.output, w.flags.output, w.flags.force); err != nil {
			return err
		}
	}
	dir := filepath.Dir(w.flags.output) // "." for no name
	var err error
	if w.file, err = os.CreateTemp(dir, ".lofamo-bundle-*"); err != nil {
		return fmt.Errorf("bundle: temporary file: %w", err)
	}
	return nil
}

// handle takes one response.
func (w *bundleWriter) handle(r *lofamov1.GetBundleResponse) error {
	if p := r.GetProgress(); p != nil {
		if p.GetReceived() == 0 && w.received > 0 {
			if err := w.restart(); err != nil {
				return err
			}
		}
		if p.GetReceived() != w.received {
			return fmt.Errorf("the supervisor counts %d bytes, %d have arrived", p.GetReceived(), w.received)
		}
		w.progress = p
	}
	if b := r.GetData(); len(b) > 0 {
		var out io.Writer = w.file
		if w.toStdout() {
			out = w.Env.Stdout
		}
		n, err := out.Write(b)
		w.received += uint64(n)
		if err != nil {
			return fmt.Errorf("write the bundle: %w", err)
		}
	}
	w.showProgress()
	return nil
}

// restart drops the received data: the node was restarted, or another supervisor answers.
func (w *bundleWriter) restart() error {
	if w.toStdout() {
		return fmt.Errorf("the transfer restarted after %d bytes, which are already on standard output: use -o FILE", w.received)
	}
	if err := w.file.Truncate(0); err != nil {
		return fmt.Errorf("start the bundle again: %w", err)
	}
	if _, err := w.file.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("start the bundle again: %w", err)
	}
	w.received = 0
	return nil
}

// finish moves the file to its final name.
func (w *bundleWriter) finish() error {
	p := w.progress
	if p.GetSize() != w.received {
		return fmt.Errorf("%d bytes were announced, %d have arrived", p.GetSize(), w.received)
	}
	path := w.flags.output
	if path == "" {
		// The node chose the name. It must have the form of a bundle's name, so that --force overwrites no other kind of file.
		if path = p.GetName(); !bundleName.MatchString(path) {
			return fmt.Errorf("the node calls the bundle %q: give a name by -o", p.GetName())
		}
	}
	said := fmt.Sprintf("%d bytes by %s in %s", w.received, way(p.GetVia()), command.Duration(w.Env.Now().Sub(w.began)))
	if p.GetRepeated() > 0 {
		said += fmt.Sprintf(", %d chunks asked for again", p.GetRepeated())
	}
	if w.toStdout() {
		w.Warnf("lofamoctl: bundle complete: %s\n", said)
		return nil
	}
	if err := errors.Join(w.file.Sync(), w.file.Close()); err != nil {
		return err
	}
	if err := giveName(w.file.Name(), path, w.flags.force); err != nil {
		return err
	}
	w.Printf("%s: %s\n", path, said)
	return nil
}

func (w *bundleWriter) discard() error {
	if w.file == nil {
		return nil
	}
	_ = w.file.Close() // closed already, perhaps
	if err := os.Remove(w.file.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func way(via string) string {
	if via == "direct" || via == "" {
		return "the service network"
	}
	return "the torus through " + via
}

// showProgress rewrites one line on a terminal, some times a second.
func (w *bundleWriter) showProgress() {
	now := w.Env.Now()
	if !w.Env.ErrTerminal || now.Sub(w.shown) < 200*time.Millisecond {
		return
	}
	w.shown = now
	p := w.progress
	line := "waiting for the node"
	if p.GetSize() > 0 {
		line = fmt.Sprintf("%3d %% of %d bytes", 100*w.received/p.GetSize(), p.GetSize())
	}
	line += " by " + way(p.GetVia())
	w.Warnf("\r%-*s", w.width, line)
	w.width = len(line)
}

func (w *bundleWriter) endProgress() {
	if w.width > 0 {
		w.Warnf("\r%-*s\r", w.width, "")
	}
}
