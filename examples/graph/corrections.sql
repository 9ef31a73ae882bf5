-- One publication, or nothing: Cai leaves, Dag comes, and Ana knows him.
insert into graph.person (id, name, mail) values ('dag', 'Dag Dahl', 'dag@example.org');
update graph.person set status = 'left' where id = 'cai';
delete from graph.knows where dst = 'cai';
insert into graph.knows values (3, 'ana', 'dag', date '2026-11-15');
