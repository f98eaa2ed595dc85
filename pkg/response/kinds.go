package response

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Class is the effect of an executor's act on a node. The gates depend on it.
type Class uint8

// The classes, the gravest last.
const (
	// Notify informs somebody, and takes nothing from the node. Caps, breaker, maintenance and opt-out do not apply.
	Notify Class = iota + 1
	// Reduce closes all or part of the node to new use. Existing work continues.
	Reduce
	// Destroy ends work on the node, or may: it requires independent witnesses.
	Destroy
)

var classNames = [...]string{"", "notify", "reduce", "destroy"}

func (c Class) String() string {
	if c == 0 || int(c) >= len(classNames) {
		return fmt.Sprintf("Class(%d)", uint8(c))
	}
	return classNames[c]
}

// Kind is an act of an executor, e.g. "kubernetes.cordon".
type Kind string

// The kinds of acts.
const (
	KubernetesCondition Kind = "kubernetes.condition"
	KubernetesEvent     Kind = "kubernetes.event"
	KubernetesLabel     Kind = "kubernetes.label"
	KubernetesCordon    Kind = "kubernetes.cordon"
	KubernetesTaint     Kind = "kubernetes.taint"
	KubernetesEvict     Kind = "kubernetes.taint-no-execute"
	KubernetesDrain     Kind = "kubernetes.drain"
	KubernetesRemediate Kind = "kubernetes.remediate"
	SlurmDrain          Kind = "slurm.drain"
	WebhookNotify       Kind = "webhook.notify"
	WebhookRemediate    Kind = "webhook.remediate"
	Alertmanager        Kind = "alertmanager"
	Command             Kind = "command"
	NodeCheck           Kind = "node.check"
	NodeRestartHalf     Kind = "node.restart-half"
	NodeMaskChannel     Kind = "node.mask-channel"
	NodeLimitFrequency  Kind = "node.limit-frequency"
	NodeFence           Kind = "node.fence"
	PowerReset          Kind = "power.reset"
	Eureka              Kind = "eureka"
)

// Traits are the properties of a kind that the engine needs.
type Traits struct {
	Class Class
	// Undoable: it can be undone, and its executor undoes only its own changes.
	Undoable bool
	// Repeatable: its executor first checks whether it has happened, so that an attempt with unknown outcome may be
	// repeated with Effect.Recheck. A person, BootSettles, or the executor's record settles a kind that is not repeatable.
	Repeatable bool
	// BootSettles: a newer boot epoch of the node's host counts as proof that it has happened. The executor's report is
	// no proof, because a BMC answers for itself. After such a report the engine waits until the host half has
	// restarted, or others have seen the node go down, within StepRecord.sightTime.
	BootSettles bool
	// Object: it writes to the node's object in another system, where other programs may act on it.
	Object bool
	// Groups: it may also respond to a group fault, which has no single node.
	Groups bool
	// Always: exempt from the engine's rates; its executor has its own limit and does the rest later.
	Always bool
	// Remote: the executor process or a node's agent carries it out. Both refuse an attempt that may last longer than
	// MaxRemoteTimeout.
	Remote bool
	// Waits: the engine itself carries it out. It has no executor.
	Waits bool
}

// MaxRemoteTimeout limits an attempt of a remote kind.
const MaxRemoteTimeout = 24 * time.Hour

// traits by kind. A webhook's remediator and a command may do anything, so they belong to the gravest class.
var traits = map[Kind]Traits{
	KubernetesCondition: {Class: Notify, Object: true, Undoable: true, Repeatable: true, Always: true},
	KubernetesEvent:     {Class: Notify, Object: true, Repeatable: true, Groups: true, Always: true},
	KubernetesLabel:     {Class: Notify, Object: true, Undoable: true, Repeatable: true},
	KubernetesCordon:    {Class: Reduce, Undoable: true, Repeatable: true},
	KubernetesTaint:     {Class: Reduce, Undoable: true, Repeatable: true},
	KubernetesEvict:     {Class: Destroy, Undoable: true, Repeatable: true},
	KubernetesDrain:     {Class: Destroy, Undoable: true, Repeatable: true},
	KubernetesRemediate: {Class: Destroy, Undoable: true, Repeatable: true},
	SlurmDrain:          {Class: Reduce, Undoable: true, Repeatable: true, Remote: true},
	WebhookNotify:       {Class: Notify, Undoable: true, Repeatable: true, Groups: true},
	WebhookRemediate:    {Class: Destroy, Undoable: true, Repeatable: true},
	Alertmanager:        {Class: Notify, Undoable: true, Repeatable: true, Groups: true},
	Command:             {Class: Destroy, Remote: true},
	NodeCheck:           {Class: Reduce, Repeatable: true, Remote: true},
	NodeRestartHalf:     {Class: Reduce, Repeatable: true, Remote: true},
	NodeMaskChannel:     {Class: Reduce, Undoable: true, Repeatable: true},
	NodeLimitFrequency:  {Class: Reduce, Undoable: true, Repeatable: true, Remote: true},
	NodeFence:           {Class: Notify, Repeatable: true, Always: true, Waits: true},
	PowerReset:          {Class: Destroy, BootSettles: true, Remote: true},
	Eureka:              {Class: Notify, Repeatable: true, Groups: true, Remote: true},
}

// Traits returns the traits of the kind; zero for an unknown kind.
func (k Kind) Traits() Traits { return traits[k] }

// Valid reports whether the kind exists.
func (k Kind) Valid() bool { return traits[k].Class != 0 }

// Kinds lists all kinds, sorted.
func Kinds() []Kind {
	out := make([]Kind, 0, len(traits))
	for k := range traits {
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b Kind) int { return strings.Compare(string(a), string(b)) })
	return out
}
