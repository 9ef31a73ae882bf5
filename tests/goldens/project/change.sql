delete from graph.knows where id = 2;
