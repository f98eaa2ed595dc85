// Package jobs is for the processes of a job. They receive the faults of the job's nodes, exchange urgent messages, and
// wait for one another, through the host half of their node (seed 003 §4.4.3, §6.1). It carries no data of
// the job, and starts and ends no processes.
//
//	c, err := jobs.Dial("") // or the path of the node's socket
//	if err != nil {
//		return err
//	}
//	defer c.Close()
//	j := c.Job(jobs.Job{Name: "train-4711", Members: []string{"n0-0-0", "n1-0-0"}})
//	go c.WatchFaults(ctx, j.Members, func(f jobs.Faults) error {
//		for _, n := range f.Nodes {
//			log.Print(n.ID, " is ", n.State)
//		}
//		return nil
//	})
//	for step := range steps {
//		compute(step)
//		err := j.Barrier(ctx, "step") // the first time generation 1, then 2, and so on
//		var gone *jobs.GoneError
//		if errors.As(err, &gone) {
//			return rollBack(gone.Nodes)
//		}
//	}
//	return j.Raise(ctx, "found", answer) // all who j.Watch hear it
//
// Calls survive a restart of the host half: they wait and continue by themselves. A barrier's arrivals may come
// twice without effect, and watches restart and report it (Heard.Again, and a full list of faults). Errors are only the
// half's own answers, and the end of the context.
package jobs
