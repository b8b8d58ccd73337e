// Package metric declares what a server and a broker count: names, help and the
// values that each label can take. It stands between the engine's and the
// broker's own words (engine.Meter, broker.Meter) and the page of edge/metric.
//
// It guarantees that what is counted has a bounded number of series, whatever
// models, people and machines say. It refuses tenants, principals and agents as
// labels: the page is for whoever runs a deployment, not for what is in it. Test
// it with go test alone; server and server/broker test it with what happens.
package metric
