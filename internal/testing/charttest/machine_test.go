package charttest

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/testing/pdeathsig"
	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// machine is a directory that replaces a machine's disk, with its own address. Processes on the machine see its paths
// as their own.
type machine struct {
	t    *testing.T
	dir  string
	node string
	ip   netip.Addr
	hall string // output of 'lofamoctl cluster init'
}

func newMachine(t *testing.T, top, hall, node string, ip netip.Addr) *machine {
	m := &machine{t, filepath.Join(top, node), node, ip, hall}
	m.mkdir(m.dir)
	return m
}

// pod simulates the pod that a kubelet creates from a template.
type pod struct {
	m       *machine
	name    string
	bin     string // directory with the programs of its images
	spec    object
	configs map[string]object // ConfigMaps by name
	volumes map[string]string // their directories here
	first   *exec.Cmd         // the first process of the PID namespace that the containers share; nil: each has its own
	running map[string]*exec.Cmd
	fields  map[string]string
}

// start creates the pod's volumes, runs its init containers to their end, and starts its containers.
func (m *machine) start(name, bin string, template object, configs map[string]object, index string) *pod {
	m.t.Helper()
	p := m.lay(name, bin, template, configs, index)
	m.t.Cleanup(p.stop)
	if p.spec.at("shareProcessNamespace") == true {
		p.pause()
	}
	for _, c := range list(p.spec, "initContainers") {
		var out bytes.Buffer
		cmd := p.container(c)
		cmd.Stdout, cmd.Stderr = &out, &out
		err := p.begin(cmd)
		if err == nil {
			err = cmd.Wait()
		}
		if err != nil {
			m.t.Fatalf("%s: %s: %v\n%s", name, c.text("name"), err, &out)
		}
	}
	for _, c := range list(p.spec, "containers") {
		cmd := p.container(c)
		p.launch(c.text("name"), cmd)
	}
	return p
}

// pause starts the first process of the pod's PID namespace, as a container runtime does. It reaps orphans.
func (p *pod) pause() {
	p.m.t.Helper()
	p.first = exec.Command("/bin/sh", "-c", "sleep infinity & wait")
	p.first.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if err := pdeathsig.Start(p.first, syscall.SIGKILL); err != nil {
		p.m.t.Fatal(err)
	}
}

// begin starts the command of a container, in the pod's PID namespace if the containers share one.
func (p *pod) begin(cmd *exec.Cmd) error {
	if p.first != nil {
		return pdeathsig.StartIn(cmd, p.first.Process.Pid)
	}
	return pdeathsig.Start(cmd, syscall.SIGTERM) // on which it ends its half, too
}

// lay creates a pod's volumes.
func (m *machine) lay(name, bin string, template object, configs map[string]object, index string) *pod {
	m.t.Helper()
	spec, _ := template.at("spec", "template", "spec").(map[string]any)
	p := &pod{
		m: m, name: name, bin: bin, spec: spec, configs: configs, running: map[string]*exec.Cmd{},
		fields: map[string]string{"spec.nodeName": m.node, "status.hostIP": m.ip.String(),
			"metadata.labels['apps.kubernetes.io/pod-index']": index},
		volumes: map[string]string{},
	}
	for _, claim := range list(template, "spec", "volumeClaimTemplates") {
		dir := filepath.Join(m.dir, "var", "lib", "lofamo", "supervisor")
		m.mkdir(dir)
		p.share(dir)
		p.volumes[claim.text("metadata", "name")] = dir
	}
	for _, v := range list(p.spec, "volumes") {
		p.volumes[v.text("name")] = p.volume(v)
	}
	return p
}

func (p *pod) launch(name string, cmd *exec.Cmd) {
	p.m.t.Helper()
	log, err := os.Create(filepath.Join(p.m.dir, p.name+"-"+name+".log"))
	if err != nil {
		p.m.t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := p.begin(cmd); err != nil {
		p.m.t.Fatal(err)
	}
	_ = log.Close()
	p.running[name] = cmd
}

// stop ends all containers at once, as a kubelet does.
func (p *pod) stop() {
	for _, cmd := range p.running {
		_ = cmd.Process.Signal(syscall.SIGTERM)
	}
	for name, cmd := range p.running {
		late := time.AfterFunc(bound, func() { _ = cmd.Process.Kill() })
		if err := cmd.Wait(); err != nil {
			p.m.t.Errorf("%s %s: asked to stop: %v\n%s", p.name, name, err, p.tail(name))
		}
		late.Stop()
	}
	p.running = nil
	if p.first != nil {
		_ = p.first.Process.Kill()
		_ = p.first.Wait()
		p.first = nil
	}
}

// log returns the whole log of a container.
func (p *pod) log(container string) string {
	b, err := os.ReadFile(filepath.Join(p.m.dir, p.name+"-"+container+".log"))
	if err != nil {
		p.m.t.Fatal(err)
	}
	return string(b)
}

// tail returns the end of a container's log.
func (p *pod) tail(container string) string {
	log := p.log(container)
	return log[max(0, len(log)-3000):]
}

func list(o object, path ...string) []object {
	var out []object
	all, _ := o.at(path...).([]any)
	for _, v := range all {
		out = append(out, object(v.(map[string]any)))
	}
	return out
}

// volume creates a volume and returns its directory.
func (p *pod) volume(v object) string {
	if path := v.text("hostPath", "path"); path != "" {
		dir := filepath.Join(p.m.dir, path)
		if v.text("hostPath", "type") == "DirectoryOrCreate" {
			p.m.mkdir(dir)
		}
		return dir
	}
	if claim := v.text("persistentVolumeClaim", "claimName"); claim != "" {
		dir := filepath.Join(p.m.dir, "claims", claim)
		if strings.HasPrefix(claim, "data-lofamo-supervisor-") {
			dir = filepath.Join(p.m.dir, "var", "lib", "lofamo", "supervisor")
		}
		p.m.mkdir(dir)
		p.share(dir)
		return dir
	}
	dir := filepath.Join(p.m.dir, p.name, v.text("name"))
	p.m.mkdir(dir)
	if name := v.text("secret", "secretName"); name != "" {
		p.secret(filepath.Join(p.m.hall, "secrets", name), dir)
		return dir
	}
	if name := v.text("configMap", "name"); name != "" {
		data, _ := p.configs[name].at("data").(map[string]any)
		for file, text := range data {
			p.m.write(filepath.Join(dir, file), text.(string))
		}
	}
	for _, s := range list(v, "projected", "sources") {
		data, _ := p.configs[s.text("configMap", "name")].at("data").(map[string]any)
		for file, text := range data {
			p.m.write(filepath.Join(dir, file), text.(string))
		}
		// The Secrets are those of docs/install.md: the files of a bundle.
		id := strings.TrimPrefix(s.text("secret", "name"), "lofamo-supervisor-")
		for _, item := range list(s, "secret", "items") {
			from := filepath.Join(p.m.hall, "supervisors", id)
			b, err := os.ReadFile(filepath.Join(from, "pki", item.text("key")))
			if err != nil {
				b, err = os.ReadFile(filepath.Join(from, item.text("key")))
			}
			if err != nil {
				p.m.t.Fatal(err)
			}
			p.m.write(filepath.Join(dir, item.text("path")), string(b))
		}
	}
	p.own(dir)
	return dir
}

// secret writes a Secret as a kubelet does for a pod with an fsGroup: owned by root and readable by the group.
func (p *pod) secret(from, dir string) {
	files, err := filepath.Glob(filepath.Join(from, "*"))
	if err != nil || len(files) == 0 {
		p.m.t.Fatalf("%s has no files: %v", from, err)
	}
	_, gid := p.user()
	for _, f := range files {
		b, err := os.ReadFile(f)
		to := filepath.Join(dir, filepath.Base(f))
		if err == nil {
			err = os.WriteFile(to, b, 0o400)
		}
		if err == nil {
			err = errors.Join(os.Chmod(to, 0o440), os.Chown(to, 0, gid)) //nolint:gosec // as a kubelet
		}
		if err != nil {
			p.m.t.Fatal(err)
		}
	}
}

// user returns the user and group of the pod's containers.
func (p *pod) user() (uid, gid int) {
	u, _ := p.spec.at("securityContext", "runAsUser").(float64)
	g, _ := p.spec.at("securityContext", "runAsGroup").(float64)
	return int(u), int(g)
}

// share gives a claim's directory to the pod's group, as a kubelet does for fsGroup; the owner stays root.
func (p *pod) share(dir string) {
	_, gid := p.user()
	if err := errors.Join(os.Chown(dir, 0, gid), os.Chmod(dir, 0o775|fs.ModeSetgid)); err != nil { //nolint:gosec // as a kubelet
		p.m.t.Fatal(err)
	}
}

// own gives a volume to the pod's user, as a substitute for a kubelet's fsGroup.
func (p *pod) own(dir string) {
	uid, gid := p.user()
	p.m.chown(dir, uid, gid)
}

func (m *machine) chown(dir string, uid, gid int) {
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, uid, gid)
	})
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) mkdir(dir string) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) write(path, text string) {
	m.mkdir(filepath.Dir(path))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

// mount is a directory that a process sees at another path.
type mount struct {
	from, to string
	readOnly bool
}

// root returns a command that runs in its own root directory, like a container, on a machine without a container
// runtime. The root has libraries, the programs of bin and the mounts, and may be read-only. It disappears with the
// process.
func (m *machine) root(name, bin string, mounts []mount, readOnly bool, args []string) *exec.Cmd {
	dir := filepath.Join(m.dir, "roots", name)
	m.mkdir(dir)
	var script strings.Builder
	do := func(format string, a ...any) { _, _ = fmt.Fprintf(&script, format+"\n", a...) }
	do("set -e")
	// on the host network, a kubelet uses the node's file
	do("mount -t tmpfs -o mode=755 tmpfs %[1]s; mkdir %[1]s/proc %[1]s/sys %[1]s/dev %[1]s/tmp %[1]s/etc; cp /etc/hosts %[1]s/etc", dir)
	do("for d in bin sbin lib lib32 lib64 libx32; do if [ -L /$d ]; then cp -P /$d %[1]s; elif [ -d /$d ]; then mkdir %[1]s/$d; mount "+
		"--bind /$d %[1]s/$d; fi; done", dir)
	do("mkdir %[1]s/usr; mount --bind /usr %[1]s/usr; mount --bind /dev %[1]s/dev; mount -t sysfs -o ro sysfs %[1]s/sys; mount -t proc proc "+
		"%[1]s/proc", dir)
	mounts = append(slices.Clone(mounts), mount{bin, "/image", true})
	slices.SortFunc(mounts, func(a, b mount) int { return len(a.to) - len(b.to) })
	for _, v := range mounts {
		do("mkdir -p %[1]s%[2]s; mount --bind %[3]s %[1]s%[2]s", dir, v.to, v.from)
		if v.readOnly {
			do("mount -o remount,bind,ro %s%s", dir, v.to)
		}
	}
	if readOnly {
		do("mount -o remount,ro %s", dir)
	}
	do("exec chroot %s \"$@\"", dir)
	cmd := exec.Command("/bin/sh", append([]string{"-c", script.String(), "sh"}, args...)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	return cmd
}

// container returns a container's process with its arguments, variables, paths, user and rights, as the first process
// of a PID namespace unless the pod's containers share one.
func (p *pod) container(c object) *exec.Cmd {
	image := c.text("image")
	program := strings.Split(image[strings.LastIndex(image, "/")+1:], ":")[0]
	var mounts []mount
	for _, v := range list(c, "volumeMounts") {
		from := p.volumes[v.text("name")]
		if from == "" {
			p.m.t.Fatalf("%s: volume %s is mounted and not there", p.name, v.text("name"))
		}
		mounts = append(mounts, mount{from, v.text("mountPath"), v.at("readOnly") == true})
	}
	cmd := p.m.root(p.name+"-"+c.text("name"), p.bin, mounts, c.at("securityContext", "readOnlyRootFilesystem") == true,
		p.within(c, program, words(c.at("args"))))
	if p.first == nil && p.spec.at("hostPID") != true {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID
	}
	return cmd
}

func words(v any) []string {
	var out []string
	all, _ := v.([]any)
	for _, a := range all {
		out = append(out, fmt.Sprint(a))
	}
	return out
}

// within returns a command line that runs a program of the image with a container's rights and variables, in its root
// directory.
func (p *pod) within(c object, program string, args []string) []string {
	env := p.env(c)
	uid, gid := p.user()
	var bounding strings.Builder
	bounding.WriteString("--bounding-set=-all")
	for _, name := range words(c.at("securityContext", "capabilities", "add")) {
		bounding.WriteString(",+" + strings.ToLower(name))
	}
	line := []string{"/usr/bin/setpriv", "--no-new-privs", "--inh-caps=-all", bounding.String()}
	if uid != 0 {
		// a change of user clears the signal
		line = append(line, "--reuid="+strconv.Itoa(uid), "--regid="+strconv.Itoa(gid), "--clear-groups", "--pdeathsig=TERM")
	}
	line = append(line, "--", "/usr/bin/env", "-i", "PATH=/image")
	for name, value := range env {
		line = append(line, name+"="+value)
		for i, a := range args {
			args[i] = strings.ReplaceAll(a, "$("+name+")", value)
		}
	}
	return append(append(line, "/image/"+program), args...)
}

func (p *pod) env(c object) map[string]string {
	out := map[string]string{}
	for _, e := range list(c, "env") {
		field := e.text("valueFrom", "fieldRef", "fieldPath")
		value, ok := p.fields[field]
		if !ok {
			p.m.t.Fatalf("%s: a field that this test does not know: %s", p.name, field)
		}
		out[e.text("name")] = value
	}
	return out
}

// ask runs a container's probe once.
func (p *pod) ask(c object, kind string) error {
	if path := c.text(kind, "httpGet", "path"); path != "" {
		for _, port := range list(c, "ports") {
			if port.text("name") == c.text(kind, "httpGet", "port") {
				host := c.text(kind, "httpGet", "host")
				if host == "" {
					host = p.m.ip.String()
				}
				resp, err := http.Get(fmt.Sprintf("http://%s:%v%s", host, port.at("containerPort"), path))
				if err != nil {
					return err
				}
				_ = resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					return fmt.Errorf("%s: %s", path, resp.Status)
				}
				return nil
			}
		}
		return fmt.Errorf("port %s is not declared", c.text(kind, "httpGet", "port"))
	}
	command := words(c.at(kind, "exec", "command"))
	args := append([]string{"--target", strconv.Itoa(p.running[c.text("name")].Process.Pid), "--mount", "--pid", "--root", "--wd=/",
		"--"}, p.within(c, command[0], command[1:])...)
	if out, err := exec.Command("nsenter", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// probe waits until the probes of all containers succeed.
func (p *pod) probe(kind string) {
	p.m.t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for _, c := range list(p.spec, "containers") {
		for end := time.Now().Add(bound); ; <-tick.C {
			err := p.ask(c, kind) // the probe itself waits for some periods
			if err == nil {
				break
			}
			if time.Now().After(end) {
				p.m.t.Fatalf("%s %s: %s: %v\n%s", p.name, c.text("name"), kind, err, p.tail(c.text("name")))
			}
		}
	}
}

// refused waits until a container's readiness probe fails for the given reason.
func (p *pod) refused(container, why string) {
	p.m.t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	cs := list(p.spec, "containers")
	c := cs[slices.IndexFunc(cs, func(c object) bool { return c.text("name") == container })]
	for end := time.Now().Add(bound); ; <-tick.C {
		err := p.ask(c, "readinessProbe")
		if err != nil && strings.Contains(err.Error(), why) {
			return
		}
		if time.Now().After(end) {
			p.m.t.Fatalf("%s %s is ready, or not for %q: %v\n%s", p.name, container, why, err, p.tail(container))
		}
	}
}

// half returns the PID of the half that a container's daemon has started, in this test's namespace.
func (p *pod) half(container string) (int, error) {
	daemon := p.running[container].Process.Pid
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", daemon))
	if err != nil {
		return 0, err
	}
	for _, name := range lists {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // a thread that has just ended
		}
		for child := range strings.FieldsSeq(string(b)) {
			line, err := os.ReadFile("/proc/" + child + "/cmdline")
			if args := strings.Split(string(line), "\x00"); err == nil && len(args) > 1 && args[1] == container {
				return strconv.Atoi(child)
			}
		}
	}
	return 0, fmt.Errorf("process %d of %s has no half:\n%s", daemon, container, p.tail(container))
}

// realtime reports whether the half that a container has started runs under a real-time policy.
func (p *pod) realtime(container string) (bool, error) {
	pid, err := p.half(container)
	if err != nil {
		return false, err
	}
	attr, err := unix.SchedGetAttr(pid, 0)
	if err != nil {
		return false, err
	}
	return attr.Policy == unix.SCHED_FIFO, nil
}

// seen returns the PID of a process in its innermost namespace.
func seen(t *testing.T, pid int) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(string(b), "\n") {
		if ids, ok := strings.CutPrefix(line, "NSpid:"); ok {
			f := strings.Fields(ids)
			return f[len(f)-1]
		}
	}
	t.Fatalf("process %d has no NSpid", pid)
	return ""
}

// wantContainers skips the test if container namespaces are not available.
func wantContainers(t *testing.T) {
	t.Helper()
	if out, err := exec.Command("unshare", "--mount", "--pid", "--fork", "--mount-proc", "/usr/bin/setpriv", "--bounding-set=-all",
		"--no-new-privs", "true").CombinedOutput(); err != nil {
		requirements.Missing(t, "no namespaces, or no setpriv of util-linux: %v: %s", err, out)
	}
}
