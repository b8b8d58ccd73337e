package plan

// Needs are the capabilities that whoever compares a plan needs, by path; with apply
// also those of whoever applies it.
func (p Plan) Needs(apply bool) map[string][]string {
	out := map[string][]string{}
	for _, i := range p.Items {
		read := i.ReadPath
		if read == "" {
			read = i.Path
		}
		out[read] = []string{"read"}
	}
	if !apply {
		return out
	}
	for _, i := range p.Items {
		out[i.Path] = append(out[i.Path], "create", "update")
		if i.Kind == "auth method" { // these servers protect the path
			out[i.Path] = append(out[i.Path], "sudo")
		}
	}
	return out
}

// Plan of what differs alone.
func (d Diff) Plan() (p Plan) {
	for _, x := range d {
		p.add(x.Item)
	}
	return p
}
