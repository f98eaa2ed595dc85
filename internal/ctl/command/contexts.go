package command

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/durable"
	"github.com/lofamo/lofamo/internal/trusted"
	"github.com/lofamo/lofamo/pkg/fault"
)

// The variables that replace flags.
const (
	envServer = "LOFAMO_SERVER"
	envCA     = "LOFAMO_CA"
	envCert   = "LOFAMO_CERT"
	envKey    = "LOFAMO_KEY"
)

// Access is a way to a cluster elsewhere. The files are in PEM.
type Access struct {
	Server string // gRPC addresses of supervisors, host:port[,host:port…]; empty: the local cluster
	CA     string // certificate of the cluster's authority
	Cert   string // the user's certificate
	Key    string // its key
}

// fill sets the empty fields to those of other.
func (t *Access) fill(other Access) {
	for _, f := range []struct{ to, from *string }{{&t.Server, &other.Server}, {&t.CA, &other.CA}, {&t.Cert, &other.Cert},
		{&t.Key, &other.Key}} {
		if *f.to == "" {
			*f.to = *f.from
		}
	}
}

// Context is a named Access. Relative paths begin at the configuration file's directory.
type Context struct {
	Name   string `json:"name"`
	Server string `json:"server"`
	CA     string `json:"ca"`
	Cert   string `json:"cert"`
	Key    string `json:"key"`
}

// Access returns the context's way to the cluster.
func (c Context) Access() Access { return Access{c.Server, c.CA, c.Cert, c.Key} }

// Contexts is the user's configuration file.
type Contexts struct {
	// Current is the name of the context in use. Empty: none.
	Current string `json:"currentContext,omitempty"`
	// List has the contexts by name, ascending.
	List []Context `json:"contexts,omitempty"`
}

// ErrNoHome says that no place for the configuration file is known.
var ErrNoHome = errors.New("no place for lofamoctl's configuration file: neither $XDG_CONFIG_HOME nor $HOME is set")

// ContextsPath returns the path of the configuration file, or ErrNoHome.
func (a *App) ContextsPath() (string, error) {
	dir := a.Env.Getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(dir) { // the XDG specification says to ignore relative paths
		home := a.Env.Getenv("HOME")
		if home == "" {
			return "", ErrNoHome
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "lofamo", "config.yaml"), nil
}

// checkContexts refuses a configuration file that another user can change or make, such as that of a HOME that sudo keeps: the file decides
// who gets the user's requests.
func checkContexts(path string) error {
	if _, err := trusted.Path(path, trusted.OwnGroup()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("configuration %s: another user can change it: %w", path, err)
	}
	return nil
}

// Contexts reads the configuration file. A missing one has no contexts.
func (a *App) Contexts() (c Contexts, path string, err error) {
	path, err = a.ContextsPath()
	if errors.Is(err, ErrNoHome) {
		return c, "", nil
	}
	if err != nil {
		return c, "", err
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return c, path, nil
	}
	if err := checkContexts(path); err != nil {
		return c, "", err
	}
	c, err = ReadContexts(path)
	return c, path, err
}

// ReadContexts reads a configuration file that exists.
func ReadContexts(path string) (c Contexts, err error) {
	if err := config.ReadStrict(path, config.MaxFile, &c); err != nil {
		return Contexts{}, err
	}
	if err := c.Validate(); err != nil {
		return Contexts{}, fmt.Errorf("configuration %s: %w", path, err)
	}
	for i := range c.List {
		for _, file := range []*string{&c.List[i].CA, &c.List[i].Cert, &c.List[i].Key} {
			if *file != "" && !filepath.IsAbs(*file) {
				*file = filepath.Join(filepath.Dir(path), *file)
			}
		}
	}
	return c, nil
}

// Validate names every bad field.
func (c Contexts) Validate() error {
	var errs []error
	for i, x := range c.List {
		field := fmt.Sprintf("contexts[%d].", i)
		if !fault.IsName(x.Name) {
			errs = append(errs, fmt.Errorf("%sname: given %q: want 1 to 63 letters, digits, '-', '_' and '.', the first and last a letter or digit",
				field, x.Name))
		}
		if slices.ContainsFunc(c.List[:i], func(o Context) bool { return o.Name == x.Name }) {
			errs = append(errs, fmt.Errorf("%sname: given %q: want each name once", field, x.Name))
		}
		for _, f := range []struct{ name, value, want string }{
			{"server", x.Server, "the addresses of supervisors, host:port[,host:port…]"}, {"ca", x.CA, "the path of a file"},
			{"cert", x.Cert, "the path of a file"}, {"key", x.Key, "the path of a file"},
		} {
			if f.value == "" {
				errs = append(errs, fmt.Errorf("%s%s: given nothing: want %s", field, f.name, f.want))
			}
		}
	}
	if _, ok := c.Find(c.Current); c.Current != "" && !ok {
		errs = append(errs, fmt.Errorf("currentContext: given %q: want %s", c.Current, c.names()))
	}
	return errors.Join(errs...)
}

// Find returns the context of that name.
func (c Contexts) Find(name string) (Context, bool) {
	i := slices.IndexFunc(c.List, func(x Context) bool { return x.Name == name })
	if i < 0 {
		return Context{}, false
	}
	return c.List[i], true
}

// names lists the contexts for an error.
func (c Contexts) names() string {
	if len(c.List) == 0 {
		return "one that exists: there is none (lofamoctl config set-context makes one)"
	}
	var all []string
	for _, x := range c.List {
		all = append(all, x.Name)
	}
	return "one of " + strings.Join(all, ", ")
}

// Unknown is the error for a name that no context has.
func (c Contexts) Unknown(what, name, path string) error {
	return Usagef("%s %q: not in %s: want %s", what, name, Dash(path), c.names())
}

// Set adds a context or replaces the one of that name.
func (c *Contexts) Set(x Context) {
	c.List = slices.DeleteFunc(slices.Clone(c.List), func(o Context) bool { return o.Name == x.Name })
	c.List = append(c.List, x)
	slices.SortFunc(c.List, func(a, b Context) int { return strings.Compare(a.Name, b.Name) })
}

// contextsWait bounds the wait for another command that changes the configuration file.
const contextsWait = 15 * time.Second

// LockContexts keeps other commands from changing the configuration file between Contexts and SaveContexts, until unlock is called. The
// lock is on the file's directory, and ends with the process.
func (a *App) LockContexts() (unlock func(), err error) {
	path, err := a.ContextsPath()
	if errors.Is(err, ErrNoHome) {
		return func() {}, nil // Contexts and SaveContexts say so
	}
	if err == nil {
		err = checkContexts(path)
	}
	if err != nil {
		return nil, err
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("configuration %s: %w", path, err)
	}
	f, err := durable.LockDir(dir, contextsWait)
	if err != nil {
		return nil, fmt.Errorf("configuration %s: %w", path, err)
	}
	return func() { _ = f.Close() }, nil
}

// SaveContexts writes the configuration file, which only its owner may read, and returns its path. The caller has called LockContexts.
func (a *App) SaveContexts(c Contexts) (string, error) {
	path, err := a.ContextsPath()
	if err == nil {
		err = checkContexts(path)
	}
	if err != nil {
		return "", err
	}
	if err := c.Validate(); err != nil {
		return path, Usage(fmt.Errorf("configuration %s: %w", path, err))
	}
	b, err := yaml.Marshal(c)
	if err != nil {
		return path, fmt.Errorf("configuration %s: %w", path, err)
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real // keep a symbolic link, such as one to a directory of dotfiles
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return path, fmt.Errorf("configuration %s: %w", path, err)
	}
	if err := durable.WriteFile(path, b, 0o600); err != nil {
		return path, fmt.Errorf("configuration %s: %w", path, err)
	}
	return path, nil
}

// Access returns the way to the cluster; Server is empty for the local one. The order of precedence is: flags, the context
// that --context names, the environment, the local cluster in the working directory, the current context.
func (a *App) Access() (Access, error) {
	t := Access{a.Server, a.CA, a.Cert, a.Key}
	env := Access{a.Env.Getenv(envServer), a.Env.Getenv(envCA), a.Env.Getenv(envCert), a.Env.Getenv(envKey)}
	switch {
	case a.Dir != "" && a.Server != "":
		return t, Usagef("--dir and --server name two clusters: want one of them")
	case a.Dir != "" && a.Context != "":
		return t, Usagef("--dir and --context name two clusters: want one of them")
	case a.Dir != "":
		return t, nil
	case a.Context != "":
		c, path, err := a.Contexts()
		if err != nil {
			return t, err
		}
		x, ok := c.Find(a.Context)
		if !ok {
			return t, c.Unknown("--context", a.Context, path)
		}
		t.fill(x.Access())
		return t, nil
	}
	if t.Server == "" {
		dir, from := a.ClusterDir()
		switch {
		case env.Server != "" && from != fromDefault:
			return t, Usagef("$%s and %s name two clusters: unset one of them", envServer, from)
		case env.Server != "":
		case from != fromDefault:
			return t, nil
		case hasCluster(dir):
			a.noteHidden(dir)
			return t, nil
		}
	}
	t.fill(env)
	c, _, err := a.Contexts()
	if err != nil && t.Server == "" {
		return t, err
	}
	if x, ok := c.Find(c.Current); ok {
		t.fill(x.Access())
	}
	return t, nil
}

// hasCluster reports whether a local cluster was made in the directory.
func hasCluster(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "cluster.json"))
	return err == nil
}

// noteHidden warns once that a local cluster hides the current context.
func (a *App) noteHidden(dir string) {
	if c, _, err := a.Contexts(); err == nil && c.Current != "" && !a.noted {
		a.noted = true
		a.Warnf("lofamoctl: the local cluster in ./%s takes precedence over the context %s (--context %s names it)\n", dir, c.Current, c.Current)
	}
}
